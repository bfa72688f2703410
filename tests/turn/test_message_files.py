"""Files of a message: as media, as text, or as a note, and the same bytes on every replay (v5, sections 3 and 5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.errors import RuntimeRefusal
from pod_host.turn import FileCache, Released, Reported, TranscriptCache
from tests.turn.artifact_store import ArtifactStore
from tests.turn.double import TURN, Runtime, calls, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed

SEES: JsonObject = {"provider": "p", "id": "m", "inputs": ["text", "image"]}
OVERFLOW = {"kind": "failed", "code": "unsupported_input", "message": "no images", "retryable": False}


def media(media_type: str, artifact_id: str, **reference: Json) -> JsonObject:
    return {
        "type": "media",
        "mediaType": media_type,
        "reference": {"artifactId": artifact_id, "version": 1, "name": "f", **reference},
    }


class Asked:
    """Keeps each call's messages; answers ``answers`` in turn, then that it is done."""

    def __init__(self, *answers: Json) -> None:
        self.calls: list[list[JsonObject]] = []
        self.answers = list(answers)

    def __call__(self, call: JsonObject, effect_id: str) -> Json:
        self.calls.append(call["prompt"][1:])
        return self.answers.pop(0) if self.answers else text("Done.")


def stored(**members: Any) -> tuple[Asked, Runtime]:
    asked = Asked(*members.pop("answers", ()))
    return asked, Runtime(asked, artifacts=ArtifactStore(), **members)


async def shown(runtime: Runtime, asked: Asked, *parts: JsonObject, **members: Any) -> list[JsonObject]:
    members = {"model": SEES, "message": {"content": list(parts)}, **members}
    assert await runtime.turn(**members).run() == Reported("completed")
    content: list[JsonObject] = asked.calls[0][0]["content"]
    return content


async def test_what_the_model_reads_is_sent_as_it_is() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"\x89PNG", "f", "image/png")
    part = media("image/png", "af_1")
    assert await shown(runtime, asked, part) == [part]
    assert [params["length"] for params in runtime.asked("artifact.read")] == [0], "its size is all that is asked"


async def test_a_text_is_shown_with_its_content() -> None:
    asked, runtime = stored()
    runtime.artifacts.put("# Notes\näöü".encode(), "f", "text/markdown")
    (said,) = await shown(runtime, asked, media("text/markdown", "af_1", name="notes.md"))
    head = "[File notes.md (text/markdown, artifact af_1, version 1): "
    assert said == {"type": "text", "text": f"{head}its text]\n# Notes\näöü\n{head}its end]"}
    assert runtime.transcript[0]["event"]["content"][0]["type"] == "media", "a view, never an edit"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (media("image/png", "af_9"), "its content cannot be shown to you"),
        (media("text/plain", "af_9"), "its content cannot be shown to you"),
        (media("image/png", "af_2"), "its content cannot be shown to you"),
        (media("text/plain", "af_3"), "its content cannot be shown to you"),
        (media("text/plain", "af_4"), "its content cannot be shown to you"),
        (media("application/pdf", "af_1"), "its content cannot be shown to you"),
    ],
)
async def test_what_cannot_be_shown_is_a_note_that_names_the_artifact(part: JsonObject, said: str) -> None:
    asked, runtime = stored(limits={"modelFileBytes": 10})
    for data, kind in ((b"x", "file"), (b"x" * 11, "file"), (b"\xff\xfe", "file"), (b"", "folder")):
        runtime.artifacts.put(data, "f", kind=kind)
    (note,) = await shown(runtime, asked, part)
    assert note["type"] == "text"
    assert part["reference"]["artifactId"] in note["text"]
    assert said in note["text"]


async def test_a_long_text_is_shown_to_a_bound_and_says_how_to_read_on() -> None:
    asked, runtime = stored()
    words = "€" * 100_000
    runtime.artifacts.put(words.encode())
    (said,) = await shown(runtime, asked, media("text/plain", "af_1"))
    used = limits.INLINE_FILE_BYTES // 3 * 3
    assert f"{used} of 300000 bytes are shown; read_artifact with offset {used} reads on" in said["text"]
    assert said["text"].count("€") == used // 3


async def test_a_small_window_is_not_filled_by_one_file() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"x" * 100_000)
    model = {**SEES, "contextWindow": 8000, "maxOutputTokens": 1000}
    (said,) = await shown(runtime, asked, media("text/plain", "af_1"), model=model)
    assert len(said["text"]) < 9000


async def test_a_small_window_is_not_filled_by_many_files_either() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"x" * 100_000)
    model = {**SEES, "contextWindow": 8000, "maxOutputTokens": 1000}
    parts = await shown(runtime, asked, *[media("text/plain", "af_1")] * 9, model=model)
    assert sum(part["text"].count("x" * 10) for part in parts) <= 8000 * 4 // 2 // 10
    assert "read_artifact reads it" in parts[-1]["text"]


async def test_the_texts_of_one_message_share_a_bound() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"y" * limits.INLINE_FILE_BYTES)
    parts = await shown(runtime, asked, *[media("text/plain", "af_1")] * 6)
    assert sum(part["text"].count("y" * 10) for part in parts) <= limits.INLINE_FILES_BYTES // 10
    assert "read_artifact reads it" in parts[-1]["text"]
    assert len(runtime.asked("artifact.read")) == 1, "one file is read once"


async def test_every_message_of_a_queue_shows_its_files() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"one")
    runtime.artifacts.put(b"two")
    messages = [{"content": [media("text/plain", artifact_id)]} for artifact_id in ("af_1", "af_2")]
    await shown(runtime, asked, message={"kind": "messages", "messages": messages})
    assert ["one" in str(asked.calls[0][0]), "two" in str(asked.calls[0][1])] == [True, True]


@pytest.mark.parametrize("cached", [True, False])
async def test_later_turns_show_the_same_bytes_read_once(cached: bool) -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"the text")
    kept: dict[str, Any] = {"transcripts": TranscriptCache(), "files": FileCache()} if cached else {}
    await shown(runtime, asked, media("text/plain", "af_1"), **kept)
    for turn_id in ("turn_2", "turn_3"):
        assert await runtime.turn(message="And?", model=SEES, turn_id=turn_id, **kept).run() == Reported("completed")
    first = [canonical(call[0]) for call in asked.calls]
    assert first == [first[0]] * 3
    assert len(runtime.asked("artifact.read")) == (1 if cached else 3)


async def test_a_session_does_not_see_what_another_one_read() -> None:
    asked, runtime = stored()
    files = FileCache()
    runtime.artifacts.put(b"the text")
    await shown(runtime, asked, media("text/plain", "af_1"), files=files)
    held = [files.get(name) for name in files._held if "ses_1" in name]
    assert len(held) == len(files._held) == 1, "what is kept is found by the session's own turns"


async def test_a_model_that_refuses_images_is_asked_again_with_the_texts_still_there() -> None:
    asked, runtime = stored(answers=[OVERFLOW])
    runtime.artifacts.put(b"the text")
    runtime.artifacts.put(b"\x89PNG", "f", "image/png")
    await shown(runtime, asked, media("text/plain", "af_1"), media("image/png", "af_2"))
    before, after = (call[0]["content"] for call in asked.calls)
    assert before[0] == after[0]
    assert (before[1]["type"], after[1]["type"]) == ("media", "text")


async def test_a_file_that_fails_each_time_fails_its_own_turn_alone() -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "artifact.read":
            raise RuntimeRefusal("internal", "a bad disk")

    asked, runtime = stored(intercept=refuse)
    part = media("text/plain", "af_1")
    assert await runtime.turn(message={"content": [part]}, model=SEES).run() == Reported("failed")
    assert runtime.outputs[0][1]["error"]["code"] == "input.file_unavailable"
    event = {"kind": "user-message", "content": [part]}
    runtime.transcript = [{"kind": "input", "turnId": "turn_0", "event": event}]
    assert await runtime.turn(message="Hi", model=SEES).run() == Reported("completed")
    assert "cannot be shown" in str(asked.calls[0][0])


async def test_a_store_that_is_out_for_a_moment_is_asked_again() -> None:
    faults = [RuntimeRefusal("unavailable", "for a moment")]

    def once(method: str, params: JsonObject) -> None:
        if method == "artifact.read" and faults:
            raise faults.pop()

    asked, runtime = stored(intercept=once)
    runtime.artifacts.put(b"the text")
    (said,) = await shown(runtime, asked, media("text/plain", "af_1"))
    assert "the text" in said["text"]


@pytest.mark.parametrize("turn_id", [TURN, "turn_0"])
async def test_while_the_store_is_out_the_run_is_given_back_and_goes_on_where_it_was(
    turn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file is the turn's own or an earlier one's: a note in its place would be another prompt."""
    monkeypatch.setattr(limits, "STORE_WAIT_SECONDS", (0.0, 0.0, 0.0))
    out = False

    def refuse(method: str, params: JsonObject) -> None:
        if method == "artifact.read" and out:
            raise RuntimeRefusal("unavailable", "the store is out")

    asked, runtime = stored(answers=[calls(("bash", {"command": "ls"}))], intercept=refuse)
    runtime.artifacts.put(b"the text")
    content: list[Json] = [media("text/plain", "af_1")]
    if turn_id != TURN:
        event = {"kind": "user-message", "content": content}
        runtime.transcript = [{"kind": "input", "turnId": turn_id, "event": event}]
        content = [{"type": "text", "text": "Hi"}]
    await until_killed(runtime, Sandbox(), 10, message={"content": content}, model=SEES)
    before = len(asked.calls)
    assert before > 0
    out = True
    assert await runtime.turn(Sandbox(), message={"content": content}, model=SEES).run() == Released("connection.lost")
    assert (runtime.outputs, len(asked.calls)) == ([], before)
    out = False
    assert await runtime.turn(Sandbox(), message={"content": content}, model=SEES).run() == Reported("completed")


async def test_a_file_that_went_between_two_runs_of_a_segment_is_drift() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"the text")
    part = media("text/plain", "af_1")
    await until_killed(runtime, Sandbox(), 10, message={"content": [part]}, model=SEES)
    assert len(asked.calls) == 1
    runtime.artifacts.versions.clear()
    assert await runtime.turn(message={"content": [part]}, model=SEES).run() == Reported("failed")
    assert runtime.outputs[0][1]["thrown"]["code"] == "effect_drift"


@pytest.mark.parametrize("reference", [None, {}, {"artifactId": "af_1"}, {"artifactId": 1, "version": 1}, "af_1"])
async def test_a_reference_without_a_version_is_not_looked_at(reference: Json) -> None:
    asked, runtime = stored()
    await shown(runtime, asked, {"type": "media", "mediaType": "text/plain", "reference": reference})
    assert runtime.asked("artifact.read") == []


@given(st.binary(max_size=300), st.integers(1, 40))
async def test_any_bytes_are_a_text_or_a_note(data: bytes, chunk: int) -> None:
    asked, runtime = stored(limits={"chunkBytes": chunk})
    runtime.artifacts.chunk_bytes = chunk
    runtime.artifacts.put(data)
    (said,) = await shown(runtime, asked, media("text/plain", "af_1"))
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        whole = "\0"
    if "\0" in whole:
        assert "cannot be shown" in said["text"]
    else:
        assert f"\n{whole}\n" in said["text"]


async def test_a_replay_asks_for_the_same_call() -> None:
    asked, runtime = stored()
    runtime.artifacts.put(b"the text")
    running = asyncio.create_task(runtime.turn(message={"content": [media("text/plain", "af_1")]}, model=SEES).run())
    await runtime.settled.wait()
    running.cancel()
    await asyncio.wait({running})
    runtime.artifacts.put(b"a newer text", artifactId="af_1")
    part = media("text/plain", "af_1")
    assert await runtime.turn(message={"content": [part]}, model=SEES).run() == Reported("completed")
    assert len(asked.calls) == 1, "the recorded answer was used: the hash is the same"
