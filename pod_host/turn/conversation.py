"""What the model is asked at each step: the system text and the conversation so far, compacted when it is due, and asked
again in another form where that helps."""

from __future__ import annotations

from dataclasses import dataclass

from pod_host.turn.candidates import Candidate
from pod_host.turn.compaction import Compaction
from pod_host.turn.endings import TurnFailure
from pod_host.turn.model_calls import ModelCalls, ModelFailed
from pod_host.turn.transcripts import SegmentTranscript


@dataclass(frozen=True, slots=True)
class Conversation:
    """``head``: canonical prompt items before the transcript's."""

    head: list[bytes]
    transcript: SegmentTranscript
    models: ModelCalls
    compaction: Compaction

    async def answer(self, step: int) -> Candidate:
        """The model's answer at ``step``. Raises what `ModelCalls.answer` raises.

        A call that overflowed the window is asked again once, after a compaction. One that was refused for what it holds
        is asked again without its files: a model may read less than was known, and a file may be gone.
        """
        await self.compaction.when_full(step)
        attempt, compacted = 1, False
        while True:
            try:
                return await self._ask(step, attempt)
            except ModelFailed as failed:
                attempt = failed.attempt + 1
                if failed.failure.code == "context_overflow" and not compacted:
                    compacted = True
                    if not await self._compact(step, failed):
                        raise
                elif failed.failure.code in ("unsupported_input", "invalid_request"):
                    if not self.transcript.show_no_files():
                        raise
                else:
                    raise

    async def _ask(self, step: int, attempt: int) -> Candidate:
        last = self.transcript.last
        worked = last is not None and last.get("kind") == "tool-results"
        prompt = self.head + self.transcript.prompt_pieces()
        asked = await self.models.answer(step, prompt, attempt=attempt, may_be_silent=worked)
        return asked.candidate

    async def _compact(self, step: int, overflow: ModelFailed) -> bool:
        try:
            return await self.compaction.after_overflow(step)
        except ModelFailed as failed:
            text = f"{overflow.message} (and no summary of the conversation could be had: {failed.message})"
            raise TurnFailure(overflow.code, text) from failed
