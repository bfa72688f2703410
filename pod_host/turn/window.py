"""How full the model's context window is, and which old tool results are shown in their short form.

Both follow from the transcript alone, entry after entry, so that every host and every later segment that reads the same
entries sends the same prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.transcript import Entry
from pod_host.contract.turn_start import ModelDescriptor


@dataclass(frozen=True, slots=True)
class Window:
    """A model's context, in tokens. ``reserve``: kept free for its answer."""

    tokens: int
    reserve: int

    @classmethod
    def of(cls, tokens: int, answer: int | None) -> Window:
        return cls(tokens, min(answer or limits.ANSWER_TOKENS, limits.ANSWER_TOKENS_MOST, tokens // 4))

    @classmethod
    def of_model(cls, model: ModelDescriptor | None) -> Window | None:
        if model is None or model.context_window is None:
            return None
        return cls.of(model.context_window, model.max_output_tokens)

    @property
    def full(self) -> int:
        """What a prompt may hold: past it the conversation is compacted."""
        return self.tokens - self.reserve

    @property
    def tail(self) -> int:
        """What a compaction leaves as it is."""
        return min(limits.TAIL_TOKENS_MOST, self.tokens * 3 // 10)


class Fill:
    """The tokens of a transcript's prompt: as the model last counted them, and an estimate of what came after.

    ``aged``: results of the entries before this one are shown in their short form. It moves when more than half of the
    window is used and a move gives back a tenth of it at least, and leaves the newest eighth alone: so a prompt's
    beginning stays the same for many steps. ``measured``: ``tokens`` holds all of the prompt, not the entries alone.
    """

    def __init__(self, window: Window | None) -> None:
        self._given = window
        self.window = window
        self.tokens = 0
        self.measured = False
        self.aged = 0
        self._sizes: list[tuple[int, int]] = []
        self._cut = 0  # where the newest eighth begins
        self._newest = 0  # tokens from there on
        self._saves = 0  # tokens that short forms would save in the entries from `aged` to there
        self._awaits: tuple[Json, Json] | None = None

    def add(self, entry: Entry, tokens: int, saves: int) -> None:
        """``tokens``: an estimate of the entry's; ``saves``: how many fewer its short form has."""
        self.tokens += tokens
        if entry.get("kind") == "compaction":
            # The answers that it kept were counted with what it replaced: the next step's is the first that holds.
            self._awaits = (entry.get("turnId"), entry.get("stepId"))
        elif entry.get("kind") == "candidate":
            self._count(entry)
        self._sizes.append((tokens, saves))
        self._newest += tokens
        if self.window is not None:
            self._age(self.window)

    def _count(self, entry: Entry) -> None:
        candidate = entry.get("candidate") or {}
        if self._given is None:
            self.window = _window_in(candidate) or self.window
        if self._awaits is not None and self._awaits != (entry.get("turnId"), entry.get("stepId")):
            return
        self._awaits = None
        used = used_tokens(candidate)
        if used is not None:
            self.tokens, self.measured = used, True

    def _age(self, window: Window) -> None:
        while self._cut < len(self._sizes) and self._newest - self._sizes[self._cut][0] >= window.tokens // 8:
            tokens, saves = self._sizes[self._cut]
            self._newest -= tokens
            self._saves += saves
            self._cut += 1
        if self.tokens > window.tokens // 2 and self._saves >= max(window.tokens // 10, 1):
            self.tokens = max(self.tokens - self._saves, 0)
            self.aged, self._saves = self._cut, 0


def used_tokens(candidate: JsonObject) -> int | None:
    """What a model counted for its call and answer; None when it did not say."""
    usage = candidate.get("usage")
    if not isinstance(usage, dict):
        return None
    members = ("inputTokens", "cachedTokens", "cacheWriteTokens", "outputTokens")
    return _count(usage.get("totalTokens")) or sum(_count(usage.get(name)) for name in members) or None


def _window_in(candidate: JsonObject) -> Window | None:
    extras = (candidate.get("evidence") or {}).get("extras")
    if not isinstance(extras, dict) or not _count(extras.get("contextWindow")):
        return None
    return Window.of(_count(extras["contextWindow"]), _count(extras.get("maxOutputTokens")) or None)


def _count(value: Json) -> int:
    """A count in a peer's JSON; 0 for what is none."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53 else 0
