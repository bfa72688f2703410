"""Arguments checked by the schema that a tool came with, before its call becomes an effect.

Such a schema is somebody else's: it may be broken, refer to what nobody fetches, or be made so that checking never ends. A
broken one checks nothing, and the log says so; regular expressions are left to whoever runs the call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.errors import InputIssue
from pod_host.turn.log import tell
from pod_host.turn.pieces import is_deep

if TYPE_CHECKING:
    from pod_host.turn.guarded import Guarded


def is_object_schema(schema: Json) -> bool:
    """Whether a tool with this ``inputSchema`` can be offered: a call's arguments are an object, and the schema is no
    deeper than whoever encodes it can take."""
    return isinstance(schema, dict) and schema.get("type") == "object" and not is_deep(schema, limits.SCHEMA_DEPTH)


class ArgumentCheck:
    """The ``check`` of the tool named ``tool``. Its schema is read at the first call."""

    def __init__(self, tool: str, schema: JsonObject) -> None:
        self._tool = tool
        self._given = schema
        self._schema: Guarded | None = None
        self._broken = False

    def __call__(self, arguments: JsonObject) -> Sequence[InputIssue]:
        if is_deep(arguments, limits.RESULT_DEPTH):
            return [InputIssue(path=[], code="depth", message="nested too deeply")]
        if self._broken:
            return ()
        try:
            return self._issues(arguments)
        except Exception as fault:  # noqa: BLE001 - whatever a schema of somebody else's does, the call goes on
            self._broken = True
            tell(logging.WARNING, "tool.schema_broken", tool=self._tool, why=str(fault) or type(fault).__name__)
            return ()

    def _issues(self, arguments: JsonObject) -> Sequence[InputIssue]:
        if self._schema is None:
            from pod_host.turn.guarded import Guarded

            self._schema = Guarded(self._given)
        return self._schema.issues(arguments)
