"""The session's transcript as a segment holds it: read once, each entry projected and encoded once, edits at the end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.transcript import CompactionFacts, Entry, transcript_updates
from pod_host.errors import ContractViolation
from pod_host.turn.projection import Reader, depends_on_turn, holds_files, prompt_items
from pod_host.turn.window import Fill

_SIGNED_TOKEN = b"eyJ"  # how every JSON Web Token begins


class EncodedEntry:
    """An entry, and its prompt items in canonical JSON, with commas between them (empty: it has none).

    ``tokens``: an estimate of them. ``saves``: how many tokens fewer their short form has, about."""

    __slots__ = ("_aged", "_for_files", "_for_turn", "entry", "items", "reader", "saves", "tokens")

    def __init__(self, entry: Entry, reader: Reader) -> None:
        items = prompt_items(entry, reader)
        texts = [canonical(item) for item in items]
        files: int = sum(part.get("type") == "media" for item in items for part in item["content"])
        self.entry = entry
        self.items = b",".join(texts)
        self.reader = reader
        self.tokens = len(self.items) // limits.BYTES_PER_TOKEN + files * limits.FILE_TOKENS
        self.saves = 0
        if entry.get("kind") == "tool-results":
            bytes_saved = sum(max(len(text) - limits.AGED_CHARACTERS, 0) for text in texts)
            self.saves = bytes_saved // limits.BYTES_PER_TOKEN + files * limits.FILE_TOKENS
        self._for_turn = depends_on_turn(entry)
        self._for_files = holds_files(entry)
        self._aged: bytes | None = None

    def shown(self, *, aged: bool) -> bytes:
        """The items; ``aged``: in their short form, made once."""
        if not aged or not self.saves:
            return self.items
        if self._aged is None:
            self._aged = b",".join(canonical(item) for item in prompt_items(self.entry, self.reader, aged=True))
        return self._aged

    def forget_files(self) -> None:
        """What was known of files is in the items: not to be held a second time."""
        if self.reader.files:
            self.reader = replace(self.reader, files={})

    def fits(self, reader: Reader) -> bool:
        """Whether the items are those that ``reader`` is shown."""
        if self._for_turn and self.reader.turn_id != reader.turn_id:
            return False
        return not self._for_files or _sight(self.reader) == _sight(reader)


def _read(entry: Entry, reader: Reader) -> EncodedEntry:
    """An entry that came from core, which nobody has looked into before."""
    try:
        return EncodedEntry(entry, reader)
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        raise ContractViolation(f"Invalid transcript: an entry is not in its shape: {type(fault).__name__}") from fault


class SegmentTranscript:
    """Entries as the segment began with them, and those that it adds.

    ``added_bytes``: of their prompt items. ``as_recorded``: False when core may record an added entry otherwise than it
    was sent: it replaces its own signed tokens, and the next turn's hashes must be those of what can be read again.
    """

    def __init__(self, before: Sequence[EncodedEntry], reader: Reader) -> None:
        self._reader = reader
        self._kept = len(before)
        self._entries = list(before)
        self._facts: CompactionFacts | None = None
        self.fill = self._filled()
        self.added_bytes = 0
        self.as_recorded = True

    @classmethod
    async def encode(cls, entries: Sequence[Entry], reader: Reader) -> SegmentTranscript:
        """From what ``transcript.read`` gave. Long sessions are encoded in pieces, so that the loop goes on beside. Raises
        ContractViolation for an entry that is not in its shape."""
        encoded: list[EncodedEntry] = []
        piece = 0
        for entry in entries:
            encoded.append(_read(entry, reader))
            piece += len(encoded[-1].items)
            if piece > limits.LOOP_PIECE_BYTES:
                await asyncio.sleep(0)
                piece = 0
        return cls(encoded, reader)

    def append(self, entry: Entry) -> None:
        encoded = EncodedEntry(entry, self._reader)
        self._entries.append(encoded)
        self._note(encoded)
        self.fill.add(entry, encoded.tokens, encoded.saves)

    def compact(self, head: Sequence[Entry], kept: Sequence[int], facts: CompactionFacts) -> None:
        """Replace the older part: ``head``, the compaction's entry first, and of the entries those at ``kept`` stay.

        A segment has one edit, so its facts are those of all its compactions: every call that wrote a summary, in
        order, the tokens before the first and after the last.
        """
        if self._facts is not None:
            facts = CompactionFacts(
                trigger=facts.trigger,
                tokens_before=self._facts.tokens_before,
                tokens_after=facts.tokens_after,
                summary_effect_ids=[*self._facts.summary_effect_ids, *facts.summary_effect_ids],
            )
        self._facts = facts
        self._kept = 0
        self._entries = [
            *(EncodedEntry(entry, self._reader) for entry in head),
            *(self._entries[index] for index in kept),
        ]
        self.fill = self._filled()
        self.added_bytes = 0
        for encoded in self._entries:
            self._note(encoded)

    def show_no_files(self) -> bool:
        """From here on files are notes that name them. False when there was none to leave out."""
        self._reader = replace(self._reader, inputs=frozenset())
        shown = self._entries
        self._entries = [
            encoded if encoded.fits(self._reader) else EncodedEntry(encoded.entry, self._reader) for encoded in shown
        ]
        self.fill = self._filled()
        return any(old.items != new.items for old, new in zip(shown, self._entries, strict=True))

    def estimate(self, entry: Entry) -> int:
        """The tokens of an entry that may come in."""
        return EncodedEntry(entry, self._reader).tokens

    @property
    def entries(self) -> list[Entry]:
        return [encoded.entry for encoded in self._entries]

    @property
    def last(self) -> Entry | None:
        return self._entries[-1].entry if self._entries else None

    @property
    def encoded(self) -> tuple[EncodedEntry, ...]:
        return tuple(self._entries)

    def prompt_pieces(self) -> list[bytes]:
        """Canonical prompt items, in order; a piece may hold several."""
        aged = self.fill.aged
        pieces = (encoded.shown(aged=index < aged) for index, encoded in enumerate(self._entries))
        return [piece for piece in pieces if piece]

    def updates(self, chunk_bytes: int) -> list[JsonObject]:
        """The edits of the segment (section 6), each at most ``chunk_bytes`` of JSON where its entries allow."""
        entries = self.entries
        return transcript_updates(entries[: self._kept], entries, chunk_bytes, self._facts, kept=self._kept)

    def _note(self, encoded: EncodedEntry) -> None:
        self.added_bytes += len(encoded.items)
        self.as_recorded = self.as_recorded and _SIGNED_TOKEN not in encoded.items

    def _filled(self) -> Fill:
        fill = Fill(self._reader.window)
        for encoded in self._entries:
            fill.add(encoded.entry, encoded.tokens, encoded.saves)
        return fill


class TranscriptCache:
    """The transcripts that sessions' last turns left, by the cursor that the Runtime gave them. Shared by a host's
    turns; bounded by the memory that the entries take, the least recently used go first."""

    def __init__(self, most_bytes: int = limits.TRANSCRIPT_CACHE_BYTES) -> None:
        self._most = most_bytes
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self.size = 0

    def get(self, session_id: str, cursor: int, reader: Reader) -> SegmentTranscript | None:
        """The transcript at ``cursor`` for a segment of ``reader``, or None when it is to be read."""
        held = self._held.get(session_id)
        if held is None or held.cursor != cursor:
            return None
        self._held.move_to_end(session_id)
        entries = [encoded if encoded.fits(reader) else EncodedEntry(encoded.entry, reader) for encoded in held.entries]
        return SegmentTranscript(entries, reader)

    def entries(self, session_id: str, cursor: int) -> list[Entry] | None:
        """Those of the transcript at ``cursor``, or None when it is to be read."""
        held = self._held.get(session_id)
        return [encoded.entry for encoded in held.entries] if held is not None and held.cursor == cursor else None

    def put(self, session_id: str, cursor: int, transcript: SegmentTranscript) -> None:
        self.drop(session_id)
        entries = transcript.encoded
        for encoded in entries:
            encoded.forget_files()
        # An entry holds its texts twice: as they came, and in its items.
        held = _Held(cursor, entries, sum(2 * len(encoded.items) for encoded in entries))
        if held.size > self._most:
            return
        self._held[session_id] = held
        self.size += held.size
        while self.size > self._most:
            _, oldest = self._held.popitem(last=False)
            self.size -= oldest.size

    def drop(self, session_id: str) -> None:
        held = self._held.pop(session_id, None)
        if held is not None:
            self.size -= held.size


@dataclass(frozen=True, slots=True)
class _Held:
    cursor: int
    entries: tuple[EncodedEntry, ...]
    size: int


def _sight(reader: Reader) -> tuple[frozenset[str] | None, int, int, int]:
    """What of files a reader is shown."""
    return reader.inputs, reader.file_bytes, reader.inline_bytes, reader.message_bytes
