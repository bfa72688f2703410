"""A provider's refusal as a failure of the contract (Harness API v5, section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pod_host.contract.model_call import ModelFailureCode
from pod_host.dev.models.base import ModelAnswer, failed

_KINDS: Final[Mapping[str, ModelFailureCode]] = {
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
    "authentication_error": "auth",
    "permission_error": "auth",
    "billing_error": "auth",
    "invalid_api_key": "auth",
    "insufficient_quota": "auth",
    "context_length_exceeded": "context_overflow",
    "content_filter": "content_policy",
    "content_policy_violation": "content_policy",
    "api_error": "transient",
    "server_error": "transient",
}
_STATUSES: Final[Mapping[int, ModelFailureCode]] = {
    401: "auth",
    402: "auth",
    403: "auth",
    408: "timeout",
    409: "transient",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_RETRYABLE: Final = {"rate_limited", "overloaded", "timeout", "transient"}
# Providers tell an overflow by words alone, or by a code that their imitators leave out.
_OVERFLOW = re.compile(
    r"prompt is too long|context (?:length|window|size)|maximum context|input is too long", re.IGNORECASE
)


def refusal(status: int, kinds: tuple[str | None, ...], message: str, headers: Mapping[str, str]) -> ModelAnswer:
    """``kinds``: the provider's own codes, the most telling first. ``status``: HTTP."""
    named = [_KINDS[kind] for kind in kinds if kind is not None and kind in _KINDS]
    by_status = _STATUSES.get(status, "transient" if status >= 500 else "invalid_request")
    code = named[0] if named else by_status
    if code == "invalid_request" and _OVERFLOW.search(message):
        code = "context_overflow"
    return failed(code, message, retryable=code in _RETRYABLE, retry_after_ms=_retry_after_ms(headers))


def unreached(fault: Exception) -> ModelAnswer:
    """The SDKs keep what was wrong with the connection to themselves."""
    why = str(fault.__cause__ or "")
    return failed("transient", f"{str(fault).rstrip('.')}: {why}" if why else str(fault), retryable=True)


def _retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Of ``retry-after-ms``, or ``retry-after`` in seconds; a date is not worth a parser here."""
    for name, scale in (("retry-after-ms", 1), ("retry-after", 1000)):
        try:
            return max(0, round(float(headers.get(name, "")) * scale))
        except (ValueError, OverflowError):
            continue
    return None
