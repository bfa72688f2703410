"""The agent loop: ask the model, run the tools it calls, again, until it answers.

A decider like any other could be: it holds nothing but the parts that every decider needs (the conversation, tool calls,
the transcript), and they know nothing of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pod_host import limits
from pod_host.contract.base import Json
from pod_host.contract.transcript import CandidateEntry, Entry, FinalEntry, ToolResultsEntry
from pod_host.turn.answers import Answers, Fits
from pod_host.turn.conversation import Conversation
from pod_host.turn.identity import Identities
from pod_host.turn.stop import Stop
from pod_host.turn.tool_calls import ToolCalls
from pod_host.turn.tracing import span
from pod_host.turn.transcripts import SegmentTranscript


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn is done; ``output`` is its result. ``steps``: of the turn, over all its segments."""

    output: Json
    steps: int


@dataclass(frozen=True, slots=True)
class Yields:
    """The turn goes on in a new segment."""

    steps: int


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """``answers``: what the last answer must be. ``steps``: how many the turn had when the segment began, and ``began`` when
    that was, by the event loop's clock. ``most_steps``: of the loop of an agent used as a tool, which ends after so many, or
    when the segment has no time left; None: it yields as a segment does."""

    ids: Identities
    conversation: Conversation
    tools: ToolCalls
    transcript: SegmentTranscript
    answers: Answers
    stop: Stop
    steps: int
    began: float
    most_steps: int | None = None

    async def run(self, inputs: list[Entry]) -> Answered | Yields:
        """The segment. Raises what model and tool calls raise: Stopped, Waits, TurnFailure."""
        for entry in inputs:
            self.transcript.append(entry)
        step = self.steps
        while True:
            self.stop.check()
            step += 1
            with span("step", step=step):
                answered = await self._step(step)
            if answered is not None:
                return answered
            if self._is_long(step, asyncio.get_running_loop().time() - self.began):
                return Yields(step)

    async def _step(self, step: int) -> Answered | None:
        """One answer and its calls. None: the turn goes on."""
        place = {"turn_id": self.ids.turn_id, "step_id": self.ids.step_id(step)}
        candidate = await self.conversation.answer(step)
        self.transcript.append(CandidateEntry(kind="candidate", candidate=candidate.wire, **place).wire())
        if candidate.calls:
            results = await self.tools.run_step(step, candidate.calls)
            self.transcript.append(ToolResultsEntry(kind="tool-results", results=results, **place).wire())
            return None
        answer = self.answers.read(candidate.text)
        if isinstance(answer, Fits):
            self.transcript.append(FinalEntry(kind="final", output=answer.output, **place).wire())
            return Answered(answer.output, step)
        self.transcript.append(self.answers.correction(answer))
        return None

    def _is_long(self, step: int, seconds: float) -> bool:
        """Whether the segment should end at this boundary. Time is no replayed fact, and need not be: a segment that ran
        again and goes on past this boundary asks for effects that nobody has asked for."""
        if self.most_steps is not None:
            return step - self.steps >= self.most_steps or seconds >= limits.AGENTS_SECONDS
        return (
            step - self.steps >= limits.YIELD_STEPS
            or seconds >= limits.YIELD_SECONDS
            or self.transcript.added_bytes >= limits.YIELD_BYTES
        )
