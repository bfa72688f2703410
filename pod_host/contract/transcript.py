"""The transcript: five kinds of entry, and the edits that change it (Harness API v5, section 6).

Entries are JSON objects here, kept as they came. An edit ``{keep, entries, length}`` keeps the first ``keep`` entries and
puts ``entries`` behind them; ``length`` is what results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from pod_host.contract.base import Count, Id, Json, JsonObject, Received, Sent, Text1
from pod_host.contract.encoding import encode
from pod_host.errors import ContractViolation

Entry: TypeAlias = JsonObject


class InputEntry(Sent):
    """``event``: ``{kind: "user-message", text | content, metadata?}``, or a person's answer."""

    kind: Literal["input"]
    turn_id: Text1
    event: JsonObject


class CandidateEntry(Sent):
    kind: Literal["candidate"]
    turn_id: Text1
    step_id: Text1
    candidate: JsonObject


class ToolResultsEntry(Sent):
    """All results of a step, in the order of the candidate's calls."""

    kind: Literal["tool-results"]
    turn_id: Text1
    step_id: Text1
    results: list[JsonObject]


class FinalEntry(Sent):
    any_json: ClassVar[frozenset[str]] = frozenset({"output"})
    kind: Literal["final"]
    turn_id: Text1
    step_id: Text1
    output: Json


class CompactionEntry(Sent):
    """A summary that replaced the older part. Always the first entry. Token counts are estimates."""

    kind: Literal["compaction"]
    turn_id: Text1
    step_id: Text1
    summary: str
    trigger: Literal["threshold", "overflow"]
    tokens_before: Count
    tokens_after: Count


TranscriptEntry = Annotated[
    InputEntry | CandidateEntry | ToolResultsEntry | FinalEntry | CompactionEntry, Field(discriminator="kind")
]


class CompactionFacts(Sent):
    trigger: Literal["threshold", "overflow"]
    tokens_before: Count
    tokens_after: Count
    summary_effect_ids: list[Id]


class TranscriptUpdate(Sent):
    keep: Count
    entries: list[JsonObject]
    length: Count
    kind: Literal["compaction"] | None = None
    compaction: CompactionFacts | None = None


class TranscriptReadResult(Received):
    cursor: int
    entries: list[JsonObject]


def entry_text(entry: Entry) -> bytes:
    """An entry as it crosses: JSON in UTF-8, members in their order, which counts when two entries are compared. Raises
    ContractViolation for what is not JSON."""
    return encode(entry)


def transcript_updates(
    before: Sequence[Entry],
    after: Sequence[Entry],
    chunk_bytes: int,
    compaction: CompactionFacts | None = None,
    *,
    kept: int | None = None,
) -> list[JsonObject]:
    """The edits that turn ``before`` into ``after``, each an event of at most ``chunk_bytes`` where its entries allow.

    ``kept``: how many first entries are known to be the same, when the caller knows; else they are compared as JSON
    text. An entry larger than ``chunk_bytes`` is an update of its own, which core refuses. ``compaction`` marks the
    edit's first update (section 6).
    """
    keep = _common(before, after) if kept is None else kept
    if keep == len(before) == len(after) and compaction is None:
        return []
    if keep == len(after):
        return [_update(keep, [], keep, compaction)]
    updates: list[JsonObject] = []
    chunk: list[Entry] = []
    base, size = keep, 0
    for entry in after[keep:]:
        entry_size = len(entry_text(entry)) + 1
        head = len(encode(_update(base, [], base, compaction if not updates else None))) + _DIGITS
        if chunk and head + size + entry_size > chunk_bytes:
            updates.append(_update(base, chunk, base + len(chunk), compaction if not updates else None))
            base, chunk, size = base + len(chunk), [], 0
        chunk.append(entry)
        size += entry_size
    updates.append(_update(base, chunk, base + len(chunk), compaction if not updates else None))
    return updates


_DIGITS = 16  # room for the digits that `length` gains as the chunk fills


def fold(entries: Sequence[Entry], updates: Iterable[JsonObject]) -> list[Entry]:
    """What the Runtime makes of the edits. Raises ContractViolation when one does not fit what is there."""
    folded = list(entries)
    for update in updates:
        keep, added, length = update["keep"], update["entries"], update["length"]
        if not 0 <= keep <= len(folded):
            raise ContractViolation(f"transcript: keep is {keep}, but there are {len(folded)} entries")
        folded = [*folded[:keep], *added]
        if len(folded) != length:
            raise ContractViolation(f"transcript: length is {length}, but the edit gives {len(folded)} entries")
    return folded


def _common(before: Sequence[Entry], after: Sequence[Entry]) -> int:
    keep = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and entry_text(old) != entry_text(new):
            break
        keep += 1
    return keep


def _update(keep: int, entries: list[Entry], length: int, compaction: CompactionFacts | None) -> JsonObject:
    update: JsonObject = {"keep": keep, "entries": entries, "length": length}
    if compaction is not None:
        update |= {"kind": "compaction", "compaction": compaction.wire()}
    return update
