"""Claims for the session's log: ``event`` requests of the host (Harness API v5, section 10). Best effort: a claim that is
refused or lost changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from pod_host.client import OnAnswer
from pod_host.contract.base import JsonObject
from pod_host.errors import PodHostError
from pod_host.host.log import get_log
from pod_host.sandbox.outcomes import Completed, Failed, Outcome

COMMAND_CHARACTERS = 500  # of a command or a pattern, in a claim
ABORTED_EXIT = 130  # of a command that was broken off
_OUTSTANDING = 256  # claims without an answer; more are dropped rather than kept

log = get_log()

Post: TypeAlias = Callable[[str, JsonObject, OnAnswer], None]
"""`client.Run.post` for a run's claims, `client.Channel.post` for those of a workspace request."""


class Claims:
    """Sends claims beside the work that they tell of."""

    def __init__(self) -> None:
        self._unanswered = 0

    def send(self, post: Post, claims: Sequence[JsonObject]) -> None:
        """`EventParams` on the wire. In their order, and before anything that is sent after them."""
        for claim in claims:
            if self._unanswered >= _OUTSTANDING:
                return
            self._unanswered += 1
            post("event", claim, partial(self._answered, claim))

    def _answered(self, claim: JsonObject, end: Any) -> None:
        self._unanswered -= 1
        if isinstance(end, PodHostError):
            log.debug("event.refused", type=claim["type"], sessionId=claim["sessionId"], reason=str(end))


def state_payload(state: str, spec: JsonObject) -> JsonObject:
    """``sandbox.state``: a pod's sandbox is its container."""
    facts = {name: spec[name] for name in ("image", "network") if spec.get(name) is not None}
    return {"state": state, "backend": "local", "isolation": "container", **facts}


def exec_payload(tool: str, tool_input: JsonObject, outcome: Outcome, duration_ms: int) -> JsonObject:
    """``sandbox.exec``: what was asked, and how it ended; nothing of what it printed or wrote."""
    told: JsonObject = {"tool": tool}
    named = "command" if tool == "bash" else "pattern" if tool in ("grep", "glob") else "path"
    text = tool_input.get(named)
    if isinstance(text, str):
        told["path" if named == "path" else "command"] = text[:COMMAND_CHARACTERS]
    if tool == "bash" and isinstance(outcome, Completed):
        told["exitCode"] = outcome.output["exitCode"]
        told["killed"] = bool(outcome.output.get("timedOut")) or outcome.output["exitCode"] == ABORTED_EXIT
    if isinstance(outcome, Failed):
        return {**told, "outcome": "failed", "code": outcome.code, "durationMs": duration_ms}
    return {**told, "outcome": "completed", "durationMs": duration_ms}
