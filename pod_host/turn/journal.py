"""The journal: every effect is written down before it runs, and never runs twice (Harness API v5, section 4).

recorded in this segment → its value        intent → completed → its value
intent → pending | uncertain → Held         intent → execute → run → outcome → the value that core recorded
                                            … run → its answer was lost → the same intent again
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pod_host import limits
from pod_host.client.room import Claim
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import (
    IntentParams,
    IntentResult,
    ModelIntent,
    OutcomeParams,
    OutcomeResult,
    ToolIntent,
)
from pod_host.contract.turn_start import RecordedOutcome
from pod_host.turn.endings import TurnThrown
from pod_host.turn.requests import LimitExceeded, Requests
from pod_host.turn.stop import IN_HAND
from pod_host.turn.text import readable


@dataclass(frozen=True, slots=True)
class Execution:
    """Core said ``execute``. ``traceparent``: the call's own span context, when core gave one. ``rejoin``: a previous
    owner left the call at a gate; the same key and body join it. ``asked``: how often this segment's run has asked for it
    now, from 1. ``most_bytes``: what the outcome of a tool call may hold, as JSON; what passes it is cut. ``claim``: of a
    call through a gate, for its answer."""

    effect_id: str
    traceparent: str | None
    rejoin: bool
    asked: int = 1
    most_bytes: int = limits.STEP_RESULT_BYTES
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """The effect ran, or surely did not: ``value`` is its outcome."""

    value: Json


@dataclass(frozen=True, slots=True)
class Unknown:
    """What became of the effect could not be learned, and why."""

    error: str


@dataclass(frozen=True, slots=True)
class Again:
    """The answer was lost on its way, and the call may be sent again: core is asked the same intent, counts it, and says
    what is to be done. Who gives it looks at `Execution.asked`, so that this ends."""


Fate: TypeAlias = Known | Unknown | Again


@dataclass(frozen=True, slots=True)
class Settled:
    """``value``: what core recorded, which may differ from what was reported (it redacts its own tokens).
    ``replayed``: nothing ran here."""

    value: Json
    replayed: bool


@dataclass(frozen=True, slots=True)
class Held:
    """The effect waits for a person (``pending``), or nobody knows its fate (``uncertain``): the segment stops."""

    status: Literal["pending", "uncertain"]
    effect_id: str


class IntentTooLarge(LimitExceeded):
    """The Runtime does not write the intent down, so the effect does not run."""


class Journal:
    def __init__(self, requests: Requests, recorded: Iterable[RecordedOutcome]) -> None:
        self._requests = requests
        self._recorded = {outcome.effect_id: outcome for outcome in recorded}

    def knows(self, effect_id: str) -> bool:
        """Whether the effect's outcome was recorded before this run began."""
        return effect_id in self._recorded

    async def settle(
        self,
        intent: ModelIntent | ToolIntent,
        request_hash: str,
        run: Callable[[Execution], Awaitable[Fate]],
        smaller: Callable[[Json], Json | None],
    ) -> Settled | Held:
        """Settle one effect, running it only if nobody did.

        ``smaller`` gives a smaller form of a value that passes a limit, or None when there is none. Raises what
        `Requests.ask` raises; IntentTooLarge; TurnThrown ``effect_drift`` when the recorded effect asked for something else.
        """
        recorded = self._recorded.get(intent.effect_id)
        if recorded is not None:
            if recorded.request_hash != request_hash:
                raise TurnThrown("effect_drift", f"{intent.effect_id} was recorded with another request")
            return Settled(recorded.outcome.get("value"), replayed=True)
        params = IntentParams(run_id=self._requests.run_id, effect=intent, request_hash=request_hash)
        asked = 0
        while True:
            asked += 1
            answer = await self._ask(params)
            if answer.status == "completed":
                return Settled(_value(intent.effect_id, answer.outcome), replayed=True)
            if answer.status != "execute":
                return Held(answer.status, intent.effect_id)
            fate = await run(Execution(intent.effect_id, answer.traceparent, answer.rejoin, asked))
            if not isinstance(fate, Again):
                return await self._report(intent.effect_id, fate, smaller)

    async def _ask(self, params: IntentParams) -> IntentResult:
        try:
            answer: IntentResult = await self._requests.ask("effect.intent", params)
        except LimitExceeded as refusal:
            raise IntentTooLarge(refusal.code, refusal.message) from refusal
        return answer

    async def _report(
        self, effect_id: str, fate: Known | Unknown, smaller: Callable[[Json], Json | None]
    ) -> Settled | Held:
        while True:
            try:
                answer: OutcomeResult = await self._requests.ask(
                    "effect.outcome", self._params(effect_id, fate), IN_HAND
                )
                break
            except LimitExceeded:
                shrunk = smaller(fate.value) if isinstance(fate, Known) else None
                if shrunk is None:
                    raise
                fate = Known(shrunk)
        if answer.status == "uncertain":
            return Held("uncertain", effect_id)
        return Settled(_value(effect_id, answer.outcome), replayed=False)

    def _params(self, effect_id: str, fate: Known | Unknown) -> OutcomeParams:
        run_id = self._requests.run_id
        if isinstance(fate, Known):
            return OutcomeParams(run_id=run_id, effect_id=effect_id, value=fate.value)
        return OutcomeParams(run_id=run_id, effect_id=effect_id, error=readable(fate.error))


def _value(effect_id: str, outcome: JsonObject | None) -> Json:
    if outcome is None:
        raise TurnThrown("invalid", f"{effect_id} is answered as completed, without an outcome")
    return outcome.get("value")
