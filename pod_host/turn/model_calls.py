"""The one place where a model call is about to run: hash → intent → gate → outcome, and again after a failure that may
pass (Harness API v5, sections 4 and 5)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.effects import ModelIntent
from pod_host.contract.encoding import encode
from pod_host.contract.model_call import MODEL_CALLS_PATH, ModelChoice, ModelControls, ModelFailure
from pod_host.contract.turn_start import TurnStart
from pod_host.errors import ContractViolation, GateRefusal, GateUnavailable
from pod_host.turn import fresh_token
from pod_host.turn.call_bytes import CallBytes
from pod_host.turn.candidates import Candidate, read_candidate, unusable
from pod_host.turn.endings import Stopped, TurnFailure, TurnThrown, Waits
from pod_host.turn.identity import Identities
from pod_host.turn.journal import Execution, Fate, Held, Journal, Known, Settled
from pod_host.turn.ports import GatePort, RunPort
from pod_host.turn.stop import CANCELS_CALLS, Stop
from pod_host.turn.tracing import Fact, code_of, span

_GATE_CODES = {400: "invalid_request", 401: "auth", 409: "invalid_request"}
_USAGE = {"input_tokens": "inputTokens", "output_tokens": "outputTokens"}


class ModelFailed(TurnFailure):
    """A model call failed for good. ``attempt``: the last one, under which another form of it must not be asked."""

    def __init__(self, failure: ModelFailure, attempt: int) -> None:
        super().__init__(f"model.{failure.code}", failure.message or f"The model call failed: {failure.code}")
        self.failure = failure
        self.attempt = attempt


@dataclass(frozen=True, slots=True)
class Asked:
    """``effect_id``: of the call that gave the answer."""

    candidate: Candidate
    effect_id: str


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """Model calls of one loop. ``tools``: gives those offered now, canonical JSON of an array. ``choice``: of the model, a
    ModelChoice in canonical JSON; None: the one that ``start`` names."""

    ids: Identities
    start: TurnStart
    tools: Callable[[], bytes]
    journal: Journal
    gates: GatePort
    run: RunPort
    stop: Stop
    choice: bytes | None = None

    async def answer(self, step: int, prompt: list[bytes], *, attempt: int, may_be_silent: bool) -> Asked:
        """The model's answer to ``prompt`` (canonical pieces, in order), for step ``step``, from its ``attempt`` on.

        Raises ModelFailed when it cannot be had, Waits when the call's fate is not known.
        """
        settle = partial(self._settle, partial(self.ids.model, step), prompt, self.tools(), self.choice)
        return await self._ask(settle, attempt, may_be_silent=may_be_silent)

    async def summary(self, step: int, trigger: str, number: int, prompt: list[bytes], most_tokens: int) -> Asked:
        """A call that writes a summary, in at most ``most_tokens``. Raises as `answer` does."""
        choice = canonical(ModelChoice(controls=ModelControls(max_output_tokens=most_tokens)).wire())
        intents = partial(self.ids.summary, step, trigger, number)
        asked = await self._ask(partial(self._settle, intents, prompt, b"[]", choice), 1, may_be_silent=False)
        if not asked.candidate.text.strip():  # calls alone: there are no tools to call
            raise ModelFailed(_failure_of("invalid_output", "The summary is empty"), 1)
        return asked

    async def _ask(
        self, settle: Callable[[int], Awaitable[tuple[str, Settled]]], attempt: int, *, may_be_silent: bool
    ) -> Asked:
        first = attempt
        while True:
            effect_id, settled = await settle(attempt)
            answer = _read(settled.value, may_be_silent=may_be_silent)
            if isinstance(answer, Candidate):
                return Asked(answer, effect_id)
            tries = attempt - first + 1
            if not answer.retryable or tries == limits.MODEL_ATTEMPTS:
                raise ModelFailed(answer, attempt)
            if not settled.replayed:
                await self.stop.race(partial(asyncio.sleep, _wait_seconds(answer, tries)))
            attempt += 1

    async def _settle(
        self,
        intents: Callable[[int], ModelIntent],
        prompt: list[bytes],
        tools: bytes,
        model: bytes | None,
        attempt: int,
    ) -> tuple[str, Settled]:
        intent = intents(attempt)
        call = CallBytes.of(intent, self.start.checkpoint.session_id, prompt, tools, model)
        request_hash = await call.request_hash(intent)
        settled = await self.journal.settle(intent, request_hash, partial(self._traced, intent, call.body), _smaller)
        if isinstance(settled, Held):
            raise Waits("waiting" if settled.status == "pending" else "uncertain", [settled.effect_id])
        return intent.effect_id, settled

    async def _traced(self, intent: ModelIntent, body: bytes, execution: Execution) -> Fate:
        model = self.start.model
        facts = {"effect_id": intent.effect_id, "purpose": intent.purpose, "model": model.id if model else None}
        with span("model", **facts, rejoin=execution.rejoin) as marks:
            fate = await self._send(body, execution)
            marks.set(**_facts(fate))
        return fate

    async def _send(self, body: bytes, execution: Execution) -> Fate:
        most = self.start.limits.model_call_bytes
        if len(body) > most:
            text = f"The model call holds {len(body)} bytes, more than the limit modelCallBytes of {most}"
            return Known(_failed("context_overflow", text, retryable=False))
        try:
            answer = await self.stop.race(partial(self._post, body, execution))
        except Stopped as stopped:
            if stopped.reason in CANCELS_CALLS:
                await self.gates.cancel(MODEL_CALLS_PATH, key=execution.effect_id, token=lambda: self.run.token)
            raise
        except GateUnavailable as fault:
            return Known(_failed("transient", f"The Model Gate did not answer: {fault}", retryable=True))
        except GateRefusal as refusal:
            if refusal.code == "run_stale":
                self.stop.stop("ownership.lost")
                raise Stopped("ownership.lost") from refusal
            code = _GATE_CODES.get(refusal.status, "transient")
            return Known(_failed(code, f"The Model Gate refused the call: {refusal}", retryable=code == "transient"))
        if "outcome" not in answer:
            return Known(_failed("transient", "The Model Gate's answer holds no outcome", retryable=False))
        return Known(self._recordable(answer["outcome"]))

    def _recordable(self, outcome: Json) -> Json:
        """``outcome``, if its entry of the transcript can be recorded too."""
        most = self.start.limits.record_entry_bytes
        try:
            size = len(encode(outcome))
        except ContractViolation as fault:
            return _failed("invalid_output", f"The model's answer cannot be recorded: {fault}", retryable=True)
        fits = size <= max(most - limits.ENTRY_ENVELOPE_BYTES, most // 2)
        return outcome if fits else _smaller(outcome) or outcome

    async def _post(self, body: bytes, execution: Execution) -> JsonObject:
        return await fresh_token.call(
            self.gates,
            self.run,
            MODEL_CALLS_PATH,
            body,
            key=execution.effect_id,
            traceparent=execution.traceparent or self.start.traceparent,
        )


def _facts(fate: Fate) -> dict[str, Fact]:
    """Of an answer, for a span: how it ended and what it took."""
    value = fate.value if isinstance(fate, Known) else None
    if not isinstance(value, dict):
        return {}
    if value.get("kind") == "failed":
        return {"error_type": code_of(str(value.get("code")))}
    finish = value.get("finishReason")
    usage = value.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    tokens = {name: counts.get(wire) for name, wire in _USAGE.items()}
    return {
        "finish_reason": code_of(finish) if isinstance(finish, str) else None,
        **{name: count for name, count in tokens.items() if isinstance(count, int)},
    }


def _failed(code: str, message: str, *, retryable: bool) -> JsonObject:
    return {"kind": "failed", "code": code, "message": message, "retryable": retryable}


def _read(value: Json, *, may_be_silent: bool) -> Candidate | ModelFailure:
    """A model effect's recorded value: an answer that can stand, or why there is none."""
    if isinstance(value, dict) and value.get("kind") == "failed":
        try:
            return ModelFailure.read(value)
        except ContractViolation as fault:
            raise TurnThrown("invalid", str(fault)) from fault
    candidate = read_candidate(value)
    if candidate is None:
        return _failure_of("invalid_output", "The Model Gate's answer is no candidate")
    return unusable(candidate, may_be_silent=may_be_silent) or candidate


def _failure_of(code: str, message: str) -> ModelFailure:
    return ModelFailure(kind="failed", code=code, message=message)


def _smaller(value: Json) -> Json | None:
    """An answer that passes ``recordEntryBytes`` cannot be recorded, nor cut: it would be another answer."""
    if isinstance(value, dict) and value.get("kind") == "failed":
        return None
    return _failed("invalid_output", "The model's answer is larger than an entry of the record may be", retryable=False)


def _wait_seconds(failure: ModelFailure, attempt: int) -> float:
    """Before the next attempt: what the provider asks for, else doubled each time, with full jitter on its half."""
    if failure.retry_after_ms is not None:
        return min(max(failure.retry_after_ms, 0) / 1000, limits.MODEL_RETRY_MOST_SECONDS)
    wait = limits.MODEL_RETRY_FIRST_SECONDS * 2.0 ** (attempt - 1)
    return min(wait, limits.MODEL_RETRY_MOST_SECONDS) * random.uniform(0.5, 1.0)
