"""Claims for the session's log: ``event`` requests of the host (Harness API v5, section 10). Best effort: a claim that is
refused or lost changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from pod_host.contract.base import JsonObject, Sent
from pod_host.contract.work import EventParams
from pod_host.errors import PodHostError
from pod_host.host.log import get_log
from pod_host.sandbox.outcomes import Completed, Failed, Outcome

COMMAND_CHARACTERS = 500  # of a command or a pattern, in a claim
ABORTED_EXIT = 130  # of a command that was broken off
_OUTSTANDING = 256  # claims without an answer; more are dropped rather than kept

log = get_log()

Ask: TypeAlias = Callable[[str, Sent], Awaitable[Any]]
"""`client.Run.request` for a run's claims, `client.Channel.request` for those of a workspace request."""


class Claims:
    """Sends claims beside the work that they tell of."""

    def __init__(self) -> None:
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, ask: Ask, claims: Sequence[EventParams]) -> None:
        """In their order, and before anything that is sent from the next turn of the event loop on."""
        for claim in claims:
            if len(self._sending) >= _OUTSTANDING:
                return
            task = asyncio.create_task(_send(ask, claim), name="claim")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)


async def _send(ask: Ask, claim: EventParams) -> None:
    try:
        await ask("event", claim)
    except PodHostError as refusal:
        log.debug("event.refused", type=claim.type, sessionId=claim.session_id, reason=str(refusal))


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
