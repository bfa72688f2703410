"""Events of a turn for the operator's log. Never content: no prompt, no output, no token."""

from __future__ import annotations

import logging
from typing import Any

_logger = logging.getLogger("pod_host.turn")


def tell(level: int, event: str, *, fault: BaseException | None = None, **fields: Any) -> None:
    """One event; ``fault``: its traceback goes with it."""
    _logger.log(level, "%s", event, extra={"event": event, "fields": fields}, exc_info=fault)
