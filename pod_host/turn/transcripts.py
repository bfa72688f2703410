"""The session's transcript as a segment holds it: read once, each entry projected and encoded once, edits at the end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.transcript import Entry, transcript_updates
from pod_host.turn.projection import depends_on_turn, prompt_items

_SIGNED_TOKEN = b"eyJ"  # how every JSON Web Token begins


@dataclass(frozen=True, slots=True)
class EncodedEntry:
    """An entry, and its prompt items in canonical JSON, with commas between them (empty: it has none).
    ``turn_id``: the turn that the items are for, where that makes a difference."""

    entry: Entry
    items: bytes
    turn_id: str | None

    @classmethod
    def of(cls, entry: Entry, turn_id: str) -> EncodedEntry:
        items = b",".join(canonical(item) for item in prompt_items(entry, turn_id))
        return cls(entry, items, turn_id if depends_on_turn(entry) else None)

    def fits(self, turn_id: str) -> bool:
        return self.turn_id is None or self.turn_id == turn_id


class SegmentTranscript:
    """Entries as the segment began with them, and those that it adds.

    ``added_bytes``: of their prompt items. ``as_recorded``: False when core may record an added entry otherwise than it
    was sent: it replaces its own signed tokens, and the next turn's hashes must be those of what can be read again.
    """

    def __init__(self, before: Sequence[EncodedEntry], turn_id: str) -> None:
        self._turn_id = turn_id
        self._kept = len(before)
        self._entries = list(before)
        self.added_bytes = 0
        self.as_recorded = True

    @classmethod
    async def encode(cls, entries: Sequence[Entry], turn_id: str) -> SegmentTranscript:
        """From what ``transcript.read`` gave. Long sessions are encoded in pieces, so that the loop goes on beside."""
        encoded: list[EncodedEntry] = []
        piece = 0
        for entry in entries:
            encoded.append(EncodedEntry.of(entry, turn_id))
            piece += len(encoded[-1].items)
            if piece > limits.LOOP_PIECE_BYTES:
                await asyncio.sleep(0)
                piece = 0
        return cls(encoded, turn_id)

    def append(self, entry: Entry) -> None:
        encoded = EncodedEntry.of(entry, self._turn_id)
        self._entries.append(encoded)
        self.added_bytes += len(encoded.items)
        self.as_recorded = self.as_recorded and _SIGNED_TOKEN not in encoded.items

    @property
    def entries(self) -> list[Entry]:
        return [encoded.entry for encoded in self._entries]

    @property
    def encoded(self) -> tuple[EncodedEntry, ...]:
        return tuple(self._entries)

    def prompt_pieces(self) -> list[bytes]:
        """Canonical prompt items, in order; a piece may hold several."""
        return [encoded.items for encoded in self._entries if encoded.items]

    def updates(self, chunk_bytes: int) -> list[JsonObject]:
        """The edits of the segment (section 6), each at most ``chunk_bytes`` of JSON where its entries allow."""
        entries = self.entries
        return transcript_updates(entries[: self._kept], entries, chunk_bytes, kept=self._kept)


class TranscriptCache:
    """The transcripts that sessions' last turns left, by the cursor that the Runtime gave them. Shared by a host's
    turns; bounded by the size of the encoded entries, the least recently used go first."""

    def __init__(self, most_bytes: int = limits.TRANSCRIPT_CACHE_BYTES) -> None:
        self._most = most_bytes
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self.size = 0

    def get(self, session_id: str, cursor: int, turn_id: str) -> SegmentTranscript | None:
        """The transcript at ``cursor`` for a segment of ``turn_id``, or None when it is to be read."""
        held = self._held.get(session_id)
        if held is None or held.cursor != cursor:
            return None
        self._held.move_to_end(session_id)
        entries = [
            encoded if encoded.fits(turn_id) else EncodedEntry.of(encoded.entry, turn_id) for encoded in held.entries
        ]
        return SegmentTranscript(entries, turn_id)

    def put(self, session_id: str, cursor: int, transcript: SegmentTranscript) -> None:
        self.drop(session_id)
        entries = transcript.encoded
        held = _Held(cursor, entries, sum(len(encoded.items) for encoded in entries))
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
