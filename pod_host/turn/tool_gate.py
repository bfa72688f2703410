"""Calls through the Tool Gate, and what becomes of one whose answer does not come (Harness API v5, sections 4 and 5).

A call is named by its effect id, as its key at the gate and in its body, and its bytes are the same each time: so it may be
sent again, by us or by the run's next owner, and is joined there or answered with what was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pod_host import limits
from pod_host.client.room import Claim
from pod_host.contract.base import JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.model_call import TOOL_CALLS_PATH
from pod_host.errors import GateRefusal, GateUnavailable
from pod_host.turn import fresh_token
from pod_host.turn.endings import Stopped
from pod_host.turn.journal import Again, Execution, Fate, Known, Unknown
from pod_host.turn.ports import GatePort, RunPort
from pod_host.turn.results import failure
from pod_host.turn.stop import CANCELS_CALLS, Stop

_LIKELIEST: Final[dict[str, int]] = {}
"""By path: which of a body's forms the gate took last. For the whole process: every turn talks to the same gate."""


@dataclass(frozen=True, slots=True)
class ToolGate:
    """``traceparent``: the turn's, for calls whose intent is answered without one. ``body_bytes``: of a body that the gate
    reads (``toolAnswerBytes``)."""

    gates: GatePort
    run: RunPort
    stop: Stop
    traceparent: str | None
    body_bytes: int

    async def call(self, path: str, forms: Sequence[JsonObject], execution: Execution, code: str) -> JsonObject | Fate:
        """The gate's answer, or the call's fate where there is none.

        ``forms``: of one body, likeliest first; another is tried when the gate does not take the one before. ``code``: of
        the failure that a refusal amounts to. Raises Stopped.
        """
        first = _LIKELIEST.get(path, 0)
        refusal: GateRefusal | None = None
        for place in [*range(first, len(forms)), *range(first)]:
            body = canonical(forms[place])
            if len(body) > self.body_bytes:
                text = f"The call holds {len(body)} bytes, more than the {self.body_bytes} that the gate takes."
                return Known(failure("tool.input-too-large", text))
            try:
                answer = await self._send(path, body, execution)
            except GateUnavailable as lost:
                if execution.asked < limits.TOOL_ASKS:
                    return Again()
                return Unknown(f"The Tool Gate did not answer, so the call may have run: {lost}")
            except GateRefusal as refused:
                refusal = refused
                if refused.code != "invalid_request":
                    break
            else:
                _LIKELIEST[path] = place
                return answer
        if refusal is not None and refusal.code == "effect_not_journaled" and execution.asked == 1:
            return Again()
        return Known(failure(code, f"The Tool Gate refused the call: {refusal}"))

    async def ask(self, path: str, body: JsonObject, *, key: str, claim: Claim) -> JsonObject:
        """One request to the gate. Raises GateRefusal, GateUnavailable, or Stopped: the run is over or is to stop."""
        return await self._post(path, canonical(body), key, self.traceparent, claim)

    async def _send(self, path: str, body: bytes, execution: Execution) -> JsonObject:
        try:
            traceparent = execution.traceparent or self.traceparent
            return await self._post(path, body, execution.effect_id, traceparent, execution.claim)
        except Stopped as stopped:
            if stopped.reason in CANCELS_CALLS:
                await self.gates.cancel(TOOL_CALLS_PATH, key=execution.effect_id, token=lambda: self.run.token)
            raise

    async def _post(self, path: str, body: bytes, key: str, traceparent: str | None, claim: Claim | None) -> JsonObject:
        call = partial(
            fresh_token.call, self.gates, self.run, path, body, key=key, traceparent=traceparent, claim=claim
        )
        try:
            return await self.stop.race(call)
        except GateRefusal as refusal:
            if refusal.code != "run_stale":
                raise
            self.stop.stop("ownership.lost")
            raise Stopped("ownership.lost") from refusal
