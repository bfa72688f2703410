"""The same inputs give the same prompt, byte for byte: whoever asks, however often the turn was handed on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.sandbox.outcomes import Completed
from pod_host.turn import Ending, Reported, TranscriptCache
from pod_host.turn.projection import Reader
from pod_host.turn.transcripts import EncodedEntry, SegmentTranscript
from pod_host.turn.window import Window
from tests.turn.double import TURN, Runtime, calls, text
from tests.turn.json_values import crossed
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_compaction import is_summary, said
from tests.turn.test_projection import entries

MODEL: JsonObject = {"provider": "p", "id": "m", "inputs": ["text"], "contextWindow": 4000, "maxOutputTokens": 500}


class Asked:
    """A model that asks for pages of given sizes, and keeps the prompt that each step was last asked with."""

    def __init__(self, pages: list[int]) -> None:
        self.pages = pages
        self.prompts: dict[str, list[bytes]] = {}

    def __call__(self, call: JsonObject, effect_id: str) -> Json:
        turn_id, _, _, place = effect_id.split(":")
        self.prompts[f"{turn_id}:{place}"] = [canonical(item) for item in call["prompt"]]
        if is_summary(call):
            return text(f"Sum of {len(said(call))}.")
        step = int(place.split("step-")[1].split("~")[0])
        usage = {"usage": {"totalTokens": len(said(call)) // 3}}
        if step > len(self.pages):
            return {**text("Done."), **usage}
        return {**calls(("bash", {"command": "page", "timeout": step})), **usage}

    def sandbox(self) -> Sandbox:
        return Sandbox(work=lambda tool, given: Completed({"stdout": "page " * self.pages[given["timeout"] - 1]}))


async def whole(pages: list[int], model: JsonObject = MODEL, **members: Any) -> tuple[Asked, Runtime]:
    """Two turns of a session, each to its end, over as many segments as it takes."""
    asked = Asked(pages)
    runtime = Runtime(asked)
    for turn_id in (TURN, "turn_2"):
        message: Json = "Read on."
        ending: Ending = Reported("yielded")
        while ending == Reported("yielded"):
            ending = await runtime.turn(asked.sandbox(), model=model, turn_id=turn_id, message=message, **members).run()
            message = {"kind": "continue"}
        assert ending == Reported("completed")
    return asked, runtime


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pages=st.lists(st.integers(1, 700), min_size=4, max_size=12), steps=st.integers(1, 5))
async def test_however_a_turn_is_handed_on_its_steps_ask_the_same(
    monkeypatch: pytest.MonkeyPatch, pages: list[int], steps: int
) -> None:
    """Read anew at each segment and turn, with members in another order, or from the cache of one that never yielded."""
    at_once, kept = await whole(pages, transcripts=TranscriptCache())
    with monkeypatch.context() as patch:
        patch.setattr(limits, "YIELD_STEPS", steps)
        handed_on, read = await whole(pages)
    assert handed_on.prompts == at_once.prompts
    assert [canonical(entry) for entry in kept.transcript] == [canonical(entry) for entry in read.transcript]


@given(st.lists(entries, max_size=12), st.integers(0, 5), st.integers(40, 4000))
async def test_entries_that_crossed_the_runtime_are_shown_as_they_were(
    added: list[JsonObject], seed: int, window: int
) -> None:
    reader = Reader("t", frozenset({"text"}), window=Window.of(window, None))
    transcript = SegmentTranscript([], reader)
    for count, entry in enumerate(added, 1):
        transcript.append(entry)
        again = SegmentTranscript([EncodedEntry(crossed(it, seed), reader) for it in added[:count]], reader)
        assert again.prompt_pieces() == transcript.prompt_pieces()
        assert again.fill.tokens == transcript.fill.tokens


async def test_old_results_are_shown_in_short_and_the_beginning_stays_the_same_for_many_steps() -> None:
    asked, runtime = await whole([450] * 30, {**MODEL, "contextWindow": 20_000})
    assert not any("summary" in place for place in asked.prompts if place.startswith(f"{TURN}:"))
    steps = [asked.prompts[f"{TURN}:step-{number}"] for number in range(1, 32)]
    moves = sum(after[: len(before)] != before for before, after in pairwise(steps))
    assert 1 <= moves <= 3, "a cache of the prompt's beginning holds between moves"
    shown = [sum(b"characters left out here" in item for item in prompt) for prompt in steps]
    assert max(shown) > 0
    results = [result for entry in runtime.transcript for result in entry.get("results", [])]
    assert all("characters left out here" not in str(result) for result in results), "a view, never an edit"
    assert all(b"characters left out here" not in prompt[-1] for prompt in steps), "the newest is whole"


async def test_files_that_a_model_does_not_read_are_named_instead() -> None:
    pdf = {"artifactId": "af_1", "version": 3, "name": "plan.pdf"}
    image = {"artifactId": "af_2", "version": 1}
    content = [
        {"type": "media", "mediaType": "application/pdf", "reference": pdf},
        {"type": "media", "mediaType": "image/png", "reference": image},
        {"type": "media", "mediaType": "text/plain", "reference": image},
        {"type": "media", "mediaType": "image/png", "reference": {"artifactId": "af_3", "version": 1}},
    ]
    seen: list[JsonObject] = []

    def model(call: JsonObject, effect_id: str) -> Json:
        seen.append(call)
        return text("Hi")

    runtime = Runtime(model)
    for size in (1, 10, 9_000_000):
        runtime.artifacts.put(b"\x89" * size, "image.png", "image/png")
    reads = {**MODEL, "inputs": ["text", "image"]}
    assert await runtime.turn(message={"content": content}, model=reads).run() == Reported("completed")
    named, shown, plain, large = seen[0]["prompt"][1]["content"]
    note = "[File plan.pdf (application/pdf, artifact af_1, version 3): its content cannot be shown to you]"
    assert named == {"type": "text", "text": note}
    assert shown == content[1]
    assert (plain["type"], large["type"]) == ("text", "text")
    assert runtime.transcript[0]["event"]["content"] == content, "a view, never an edit"
    await runtime.turn(message="And now?", model=MODEL, turn_id="turn_2").run()
    assert all(part["type"] == "text" for item in seen[1]["prompt"] for part in item["content"])


@pytest.mark.parametrize("code", ["unsupported_input", "invalid_request"])
async def test_a_call_refused_for_its_files_is_asked_again_without_them(code: str) -> None:
    file = {"type": "media", "mediaType": "image/png", "reference": {"artifactId": "af_1", "version": 1}}
    refusal = {"kind": "failed", "code": code, "message": "the file is gone", "retryable": False}
    prompts: list[str] = []

    def model(call: JsonObject, effect_id: str) -> Json:
        prompts.append(str(call["prompt"]))
        if "'media'" in prompts[-1]:
            return refusal
        return text("Done.") if "Assistant" in prompts[-1] or len(prompts) > 2 else calls(("bash", {"command": "ls"}))

    runtime = Runtime(model)
    assert await runtime.turn(Sandbox(), message={"content": [file]}).run() == Reported("completed")
    assert runtime.gate_calls == [f"{TURN}:0:model:step-1{again}" for again in ("", "~2")] + [f"{TURN}:0:model:step-2"]
    assert runtime.transcript[0]["event"]["content"] == [file]


async def test_a_call_without_files_is_not_asked_again() -> None:
    refusal = {"kind": "failed", "code": "unsupported_input", "message": "no", "retryable": False}
    runtime = Runtime(lambda call, effect_id: refusal)
    assert await runtime.turn().run() == Reported("failed")
    assert runtime.outputs[0][1]["error"] == {"code": "model.unsupported_input", "message": "no"}
    assert len(runtime.gate_calls) == 1
