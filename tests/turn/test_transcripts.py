"""The transcript of a segment: encoded once, cached by cursor, edited at the end."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.transcript import fold
from pod_host.turn.projection import Reader
from pod_host.turn.transcripts import EncodedEntry, SegmentTranscript, TranscriptCache
from tests.turn.double import Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox


def message(words: str, turn_id: str = "t") -> JsonObject:
    return {"kind": "input", "turnId": turn_id, "event": {"kind": "user-message", "text": words}}


def thought(turn_id: str) -> JsonObject:
    block = {"type": "reasoning", "text": "hm", "providerMetadata": {"replay": "turn"}}
    return {"kind": "candidate", "turnId": turn_id, "stepId": "s", "candidate": {"output": [block]}}


async def segment(*entries: JsonObject, turn_id: str = "t") -> SegmentTranscript:
    return await SegmentTranscript.encode(entries, Reader(turn_id))


async def test_the_edits_of_a_segment_fold_to_what_it_holds() -> None:
    transcript = await segment(message("one"), message("two"))
    transcript.append(message("three"))
    transcript.append(message("x" * 500))
    updates = transcript.updates(400)
    assert [update["keep"] for update in updates] == [2, 3]
    assert fold([message("one"), message("two")], updates) == transcript.entries


async def test_a_segment_that_adds_nothing_edits_nothing() -> None:
    assert (await segment(message("one"))).updates(1000) == []


async def test_entries_are_encoded_once_whatever_the_length_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = EncodedEntry.__init__

    def count(self: EncodedEntry, entry: JsonObject, reader: Reader) -> None:
        encoded.append(entry["kind"])
        encode(self, entry, reader)

    monkeypatch.setattr(EncodedEntry, "__init__", count)
    runtime = Runtime(script(*[calls(("bash", {"command": "ls"}))] * 5, text("One."), text("Two.")))
    cache = TranscriptCache()
    await runtime.turn(Sandbox(), transcripts=cache).run()
    assert len(encoded) == len(runtime.transcript)
    await runtime.turn(Sandbox(), turn_id="turn_2", transcripts=cache).run()
    assert len(encoded) == len(runtime.transcript)


async def test_a_cached_transcript_is_found_by_its_cursor_alone() -> None:
    cache = TranscriptCache()
    cache.put("s", 3, await segment(message("one")))
    found = cache.get("s", 3, Reader("t"))
    assert found is not None
    assert found.entries == [message("one")]
    assert cache.get("s", 4, Reader("t")) is None
    assert cache.get("other", 3, Reader("t")) is None


async def test_what_a_turn_adds_does_not_touch_the_cache() -> None:
    cache = TranscriptCache()
    cache.put("s", 3, await segment(message("one")))
    first = cache.get("s", 3, Reader("t"))
    assert first is not None
    first.append(message("two"))
    second = cache.get("s", 3, Reader("t"))
    assert second is not None
    assert second.entries == [message("one")]


async def test_what_is_for_its_turn_alone_is_projected_anew_for_the_next() -> None:
    cache = TranscriptCache()
    cache.put("s", 1, await segment(thought("t")))
    same, later = cache.get("s", 1, Reader("t")), cache.get("s", 1, Reader("later"))
    assert same is not None
    assert later is not None
    assert len(same.prompt_pieces()) == 1
    assert later.prompt_pieces() == []


async def test_the_cache_is_bounded_and_the_least_recently_used_goes_first() -> None:
    one = await segment(message("x" * 1000))
    size = 2 * len(one.prompt_pieces()[0])  # an entry and its items
    cache = TranscriptCache(3 * size)
    for session in ("a", "b", "c"):
        cache.put(session, 1, one)
    cache.get("a", 1, Reader("t"))
    cache.put("d", 1, one)
    assert [session for session in "abcd" if cache.get(session, 1, Reader("t"))] == ["a", "c", "d"]
    assert cache.size == 3 * size
    cache.put("a", 2, one)
    cache.drop("c")
    cache.drop("c")
    assert cache.size == 2 * size


async def test_the_cache_takes_no_more_memory_than_it_may() -> None:
    most = 4 * 1024 * 1024
    cache = TranscriptCache(most)
    await segment(message("once"))  # what is made once and stays is there before we look
    tracemalloc.start()
    try:
        for number in range(200):
            cache.put(f"session-{number}", 1, await segment(message(f"{number}" * 50_000)))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most / 2 < held < most * 1.1


async def test_a_transcript_larger_than_the_cache_is_not_kept() -> None:
    cache = TranscriptCache(100)
    cache.put("a", 1, await segment(message("x" * 1000)))
    assert cache.get("a", 1, Reader("t")) is None
    assert cache.size == 0


async def test_a_long_transcript_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOP_PIECE_BYTES", 10)
    transcript = await segment(*[message(str(n)) for n in range(20)])
    assert len(transcript.entries) == 20
