"""Transcript edits: the vectors, and that folding them gives what was meant, within the limit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pod_host.contract.encoding import encode
from pod_host.contract.transcript import (
    CompactionFacts,
    Entry,
    TranscriptEntry,
    TranscriptUpdate,
    fold,
    transcript_updates,
)
from pod_host.errors import ContractViolation
from tests.contract.values import nested, texts, vectors

# The vectors' code counts an entry in UTF-16 units and leaves the envelope out; ours counts the whole update in bytes. So
# where the limit decides the cut, only what the Runtime makes of the edits is compared.
CUT_BY_SIZE = {"split", "oversize-entry", "non-ascii-size"}
FACTS = CompactionFacts(trigger="threshold", tokens_before=9000, tokens_after=100, summary_effect_ids=["t:0:model:c"])

entries = st.fixed_dictionaries(
    {"kind": st.sampled_from(["input", "candidate"]), "text": texts | st.text(max_size=200)}
)
transcripts = st.lists(entries, max_size=12)


@pytest.mark.parametrize("vector", vectors("transcript"), ids=lambda vector: vector["name"])
def test_transcript_vectors(vector: dict[str, Any]) -> None:
    before, after, limit = vector["before"], vector["after"], vector["chunk_bytes"]
    updates = transcript_updates(before, after, limit)
    if vector["name"] in CUT_BY_SIZE:
        assert_within(updates, limit)
    else:
        assert encode(updates) == encode(vector["updates"])
    assert fold(before, updates) == fold(before, vector["updates"]) == after


def test_there_are_twelve_transcript_vectors() -> None:
    assert len(vectors("transcript")) == 12


def assert_within(updates: list[Entry], limit: int) -> None:
    """No update passes the limit, but for an entry that is too large by itself."""
    for update in updates:
        assert len(encode(update)) <= limit or len(update["entries"]) <= 1
        TranscriptUpdate.model_validate(update)


@given(transcripts, transcripts, st.integers(0, 12), st.integers(60, 2000), st.booleans())
def test_folding_the_edits_gives_what_was_meant(
    before: list[Entry], added: list[Entry], keep: int, limit: int, compacted: bool
) -> None:
    after = [*before[:keep], *added]
    facts = FACTS if compacted else None
    updates = transcript_updates(before, after, limit, facts)
    assert fold(before, updates) == after
    assert_within(updates, limit)
    assert [("kind" in update, "compaction" in update) for update in updates] == [
        (compacted and index == 0,) * 2 for index in range(len(updates))
    ]


@given(transcripts, transcripts, st.integers(60, 2000))
def test_a_known_prefix_is_not_compared(before: list[Entry], added: list[Entry], limit: int) -> None:
    updates = transcript_updates(before, [*before, *added], limit, kept=len(before))
    assert updates == transcript_updates(before, [*before, *added], limit)


@given(st.lists(entries, min_size=1, max_size=30))
def test_edits_are_filled_up_to_the_limit(added: list[Entry]) -> None:
    """Two neighbours never fit into one: an edit is not cut finer than it must be."""
    limit = 700
    updates = transcript_updates([], added, limit)
    for first, second in pairwise(updates):
        joined = {**first, "entries": [*first["entries"], second["entries"][0]], "length": first["length"] + 1}
        assert len(encode(joined)) > limit - 32


def test_a_compaction_that_changes_no_entry_is_told_all_the_same() -> None:
    same = [{"kind": "input", "turnId": "t", "event": {}}]
    assert transcript_updates(same, same, 1000, FACTS) == [
        {"keep": 1, "entries": [], "length": 1, "kind": "compaction", "compaction": FACTS.wire()}
    ]


@pytest.mark.parametrize(
    "update",
    [
        {"keep": 2, "entries": [], "length": 2},
        {"keep": 1, "entries": [{}], "length": 1},
        {"keep": -1, "entries": [], "length": 0},
    ],
)
def test_an_edit_that_does_not_fit_is_a_violation(update: Entry) -> None:
    with pytest.raises(ContractViolation, match="transcript: "):
        fold([{"kind": "input"}], [update])


def test_an_entry_nested_too_deeply_is_a_violation() -> None:
    with pytest.raises(ContractViolation, match="nested too deeply"):
        transcript_updates([], [{"kind": "candidate", "args": nested(100_000)}], 1000)


def test_five_kinds_of_entry_with_exact_members() -> None:
    entry: TypeAdapter[Any] = TypeAdapter(TranscriptEntry)
    step = {"turnId": "t", "stepId": "s"}
    facts = {"summary": "…", "trigger": "overflow", "tokensBefore": 9, "tokensAfter": 1}
    for good in (
        {"kind": "input", "turnId": "t", "event": {"kind": "user-message", "text": "hi"}},
        {"kind": "candidate", **step, "candidate": {"output": []}},
        {"kind": "tool-results", **step, "results": [{"kind": "completed"}]},
        {"kind": "final", **step, "output": None},
        {"kind": "compaction", **step, **facts},
    ):
        assert entry.validate_python(good).wire() == good
        for bad in ({**good, "extra": 1}, {**good, "turnId": ""}, {**good, "turnId": None}, {**good, "kind": "note"}):
            with pytest.raises(ValidationError):
                entry.validate_python(bad)
