"""Compaction: a summary takes the place of a conversation's older part, when the model's window is full or a call
overflowed it (Harness API v5, section 6).

Everything follows from the transcript and the recorded outcomes of the summary calls, which are effects with names of
their own: a turn that was cut off in the middle compacts the same entries by the same calls, to the same prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pod_host import limits
from pod_host.contract.transcript import CompactionEntry, CompactionFacts, Entry
from pod_host.turn.identity import Identities
from pod_host.turn.log import tell
from pod_host.turn.memory import is_pinned
from pod_host.turn.model_calls import ModelCalls, ModelFailed
from pod_host.turn.summaries import first_part, summary_prompt, told
from pod_host.turn.text import readable, shortened
from pod_host.turn.tracing import span
from pod_host.turn.transcripts import SegmentTranscript
from pod_host.turn.window import Window

Trigger = Literal["threshold", "overflow"]

_MOST_OFF = 4  # times that an estimate may be too small
_LEAST_PART_BYTES = 4096  # of a conversation: a smaller one that overflows is not the conversation's fault


@dataclass(frozen=True, slots=True)
class Cut:
    """``summarized`` and ``kept``: indexes of entries. ``tokens``: of those that are summarized."""

    summarized: list[int]
    kept: list[int]
    tokens: int


def cut(entries: Sequence[Entry], sizes: Sequence[int], turn_id: str, *, tail: int, step: int) -> Cut | None:
    """Where to cut: the newest entries within ``tail`` tokens stay, and at least the last step, if it is within ``step``;
    never a tool's result without its call. The turn's own messages stay too, wherever they are. A pinned entry goes: it
    is pinned afresh. None when there is nothing to summarize.
    """
    start, held = len(entries), 0
    while start > 0 and held + sizes[start - 1] <= tail:
        start -= 1
        held += sizes[start]
    last = max((index for index, entry in enumerate(entries) if entry.get("kind") == "candidate"), default=start)
    if last < start and sum(sizes[last:]) <= step:
        start = last
    while start < len(entries) and entries[start].get("kind") not in ("input", "candidate"):
        start += 1
    summarized: list[int] = []
    kept: list[int] = []
    for index, entry in enumerate(entries):
        if is_pinned(entry) or entry.get("kind") == "compaction":
            continue
        own = entry.get("kind") == "input" and entry.get("turnId") == turn_id
        (kept if index >= start or own else summarized).append(index)
    if not summarized:
        return None
    return Cut(summarized, kept, sum(sizes[index] for index in summarized))


class Compaction:
    """Compactions of one segment. ``pinned``: what stands behind every summary. ``beside_tokens``: an estimate of what a
    call holds beside the transcript: system text and tools."""

    def __init__(
        self,
        *,
        ids: Identities,
        models: ModelCalls,
        transcript: SegmentTranscript,
        pinned: Sequence[Entry],
        beside_tokens: int,
        model_call_bytes: int,
        record_entry_bytes: int,
    ) -> None:
        self._ids = ids
        self._models = models
        self._transcript = transcript
        self._pinned = pinned
        self._beside = beside_tokens
        self._call_tokens = model_call_bytes // limits.BYTES_PER_TOKEN
        self._summary_bytes = min(limits.SUMMARY_BYTES, record_entry_bytes // 4)
        self._gave_up = False

    async def when_full(self, step: int) -> None:
        """Compact before the call of ``step``, if the window is full and there is enough to gain. A summary that cannot be
        had is no end: the call may still fit. It is not tried again in this segment."""
        window = self._transcript.fill.window
        if self._gave_up or window is None or self._tokens() <= window.full:
            return
        found = self._cut(tail=window.tail, step=window.full // 2)
        if found is None or found.tokens < window.tokens // 10:
            return
        try:
            await self._compact(step, "threshold", found)
        except ModelFailed as failed:
            self._gave_up = True
            tell(logging.WARNING, "compaction.failed", trigger="threshold", code=failed.code)

    async def after_overflow(self, step: int) -> bool:
        """Compact after the call of ``step`` did not fit. False when there is nothing to summarize. Raises ModelFailed
        when the summary cannot be had."""
        window, tokens = self._transcript.fill.window, self._tokens()
        within = min(tokens, window.tokens) if window else tokens
        tail = min(window.tail if window else limits.TAIL_TOKENS_MOST, within * 3 // 10) // 2
        found = self._cut(tail=tail, step=within // 4)
        if found is None:
            return False
        await self._compact(step, "overflow", found)
        return True

    def _tokens(self) -> int:
        fill = self._transcript.fill
        return fill.tokens if fill.measured else fill.tokens + self._beside

    def _sizes(self) -> list[int]:
        """The tokens of each entry, whole: the estimates, as much larger as the model counted more than they say."""
        encoded, aged = self._transcript.encoded, self._transcript.fill.aged
        estimate = self._beside + sum(it.tokens - it.saves * (index < aged) for index, it in enumerate(encoded))
        counted = min(max(self._tokens(), estimate), estimate * _MOST_OFF)
        return [it.tokens * counted // max(estimate, 1) for it in encoded]

    def _cut(self, *, tail: int, step: int) -> Cut | None:
        most = self._call_tokens // 4  # a call is bounded in bytes too
        entries = self._transcript.entries
        return cut(entries, self._sizes(), self._ids.turn_id, tail=min(tail, most), step=min(step, most))

    async def _compact(self, step: int, trigger: Trigger, found: Cut) -> None:
        transcript, before = self._transcript, self._tokens()
        with span("compaction", trigger=trigger, tokens_before=before) as marks:
            summary, effect_ids = await self._summarize(step, trigger, found)
            marks.set(calls=len(effect_ids))
        sizes = self._sizes()
        texts = sum(transcript.estimate(entry) for entry in self._pinned) + len(summary) // limits.BYTES_PER_TOKEN
        facts = CompactionFacts(
            trigger=trigger,
            tokens_before=before,
            tokens_after=self._beside + texts + sum(sizes[index] for index in found.kept),
            summary_effect_ids=effect_ids,
        )
        entry = CompactionEntry(
            kind="compaction",
            turn_id=self._ids.turn_id,
            step_id=self._ids.step_id(step),
            summary=summary,
            trigger=trigger,
            tokens_before=facts.tokens_before,
            tokens_after=facts.tokens_after,
        )
        transcript.compact([entry.wire(), *self._pinned], found.kept, facts)
        tell(logging.INFO, "compaction.done", trigger=trigger, tokensBefore=before, tokensAfter=facts.tokens_after)

    async def _summarize(self, step: int, trigger: Trigger, found: Cut) -> tuple[str, list[str]]:
        """The summary, and the calls that wrote it, in order: each merges one more part into what was before."""
        entries, window = self._transcript.entries, self._transcript.fill.window
        first = entries[0]
        summary = str(first.get("summary") or "") if first.get("kind") == "compaction" else ""
        texts: Sequence[str] = [text for index in found.summarized for text in told(entries[index])]
        texts = texts or ["(nothing was said)"]
        part_bytes, answer_tokens = self._part_bytes(window), _answer_tokens(window)
        effect_ids: list[str] = []
        number = 0
        while texts:
            part, rest = first_part(texts, part_bytes)
            number += 1
            try:
                asked = await self._models.summary(step, trigger, number, summary_prompt(summary, part), answer_tokens)
            except ModelFailed as failed:
                if failed.failure.code != "context_overflow" or part_bytes <= _LEAST_PART_BYTES:
                    raise
                part_bytes //= 2
                continue
            summary = self._fitting(asked.candidate.text)
            effect_ids.append(asked.effect_id)
            texts = rest
        return summary, effect_ids

    def _part_bytes(self, window: Window | None) -> int:
        """Half of the window, for the estimate may be off by as much; and within a call's bytes."""
        tokens = window.tokens // 2 if window else min(limits.SUMMARY_CALL_TOKENS, self._tokens() // 2)
        return max(min(tokens, self._call_tokens // 2) * limits.BYTES_PER_TOKEN, _LEAST_PART_BYTES)

    def _fitting(self, text: str) -> str:
        """The summary within what its entry may hold; a character has up to four bytes."""
        summary = readable(text.strip())
        if len(summary.encode()) <= self._summary_bytes:
            return summary
        return shortened(summary, self._summary_bytes // 4)


def _answer_tokens(window: Window | None) -> int:
    reserve = window.reserve if window else limits.ANSWER_TOKENS
    return max(reserve * 8 // 10, 1)
