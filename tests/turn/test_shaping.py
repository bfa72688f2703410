"""Results that fit: what is stored, what stands in its place, and that a second run stores nothing new (v5, section 5b)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod_host import limits
from pod_host.client import Room
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import McpTarget
from pod_host.contract.encoding import encode
from pod_host.errors import RuntimeRefusal
from pod_host.turn import Reported
from pod_host.turn.artifacts import Artifacts
from pod_host.turn.journal import Execution, Fate, Known
from pod_host.turn.loops import Loop
from pod_host.turn.projection import Reader
from pod_host.turn.requests import Requests
from pod_host.turn.results import fit, json_bytes, share_bytes
from pod_host.turn.shaping import Shaper, StepBudget
from pod_host.turn.stop import IN_HAND, Stop
from pod_host.turn.toolset import Tool
from tests.turn.artifact_store import ArtifactStore
from tests.turn.double import Runtime, calls, script, text
from tests.turn.json_values import values
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed
from tests.turn.tool_gate_double import texts, tool

SEES = Reader("t", frozenset({"text", "image"}))
BLIND = Reader("t", frozenset({"text"}))
MODEL: JsonObject = {"provider": "p", "id": "m", "inputs": ["text", "image"]}
EFFECT = "turn_1:0:tool:step-1/0"


def shaper(store: ArtifactStore, reader: Reader = SEES) -> Shaper:
    runtime = Runtime(lambda call, effect_id: text(""), artifacts=store)
    return Shaper(Artifacts(Requests(runtime.lease(), Stop()), store.chunk_bytes, IN_HAND), reader)


async def shaped(value: Json, store: ArtifactStore | None = None, **members: Any) -> Json:
    most = members.pop("most_bytes", limits.STEP_RESULT_BYTES)
    made = shaper(store or ArtifactStore(), **members)
    return await made.shape(value, effect_id=EFFECT, tool_name="docs__search", most_bytes=most, budget=StepBudget())


def done(output: Json) -> JsonObject:
    return {"kind": "completed", "output": output}


def image(data: bytes, media_type: str = "image/png") -> JsonObject:
    return {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": media_type}


@pytest.mark.parametrize(
    "value",
    [
        done("short"),
        done({"rows": [1, 2]}),
        done([{"type": "text", "text": "x"}, {"type": "resource_link", "uri": "file:///a"}]),
        {"kind": "failed", "code": "mcp.tool", "message": "no"},
        {"any": "json"},
        None,
        "text",
        [1, "x"],
    ],
)
async def test_what_fits_stays_as_it_is_and_nothing_is_stored(value: Json) -> None:
    store = ArtifactStore()
    assert await shaped(value, store) is value
    assert store.opened == 0


async def test_a_long_text_is_stored_and_previewed() -> None:
    store = ArtifactStore()
    words = "".join(f"{n} " for n in range(20_000))
    result = await shaped({**done(words), "redacted": 1}, store)
    kept = store.named("docs__search-result.txt")
    output = dict(result["output"])
    head, tail = output.pop("preview").split("\n…\n")
    assert output == {
        "truncated": True,
        "artifactId": "af_1",
        "version": 1,
        "contentType": "text/plain",
        "size": len(words),
    }
    assert (words[:4096], words[-1024:]) == (head, tail)
    assert (kept.data.decode(), kept.effect_id) == (words, EFFECT)
    assert (result["truncated"], result["redacted"]) == (True, 1)


async def test_long_json_is_stored_as_json() -> None:
    store = ArtifactStore()
    rows = [{"n": n, "name": "ä" * 20} for n in range(3000)]
    result = await shaped(done(rows), store)
    assert store.named("docs__search-result.json").data == encode(rows)
    assert result["output"]["contentType"] == "application/json"
    assert result["output"]["preview"].startswith('[{"n":0,"name":"ä')


async def test_an_image_is_stored_and_shown_whatever_its_size() -> None:
    for size in (9, 500_000):
        store = ArtifactStore()
        data = bytes(range(256)) * (size // 256 + 1)
        result = await shaped(done([{"type": "text", "text": "A chart:"}, image(data)]), store)
        assert result["output"] == [
            {"type": "text", "text": "A chart:"},
            {"type": "image", "artifactId": "af_1", "version": 1, "contentType": "image/png", "size": len(data)},
        ]
        reference = {"artifactId": "af_1", "version": 1, "name": "docs__search-result-1.png"}
        assert result["files"] == [{"mediaType": "image/png", "reference": reference}]
        assert store.named("docs__search-result-1.png").data == data


async def test_a_model_that_reads_no_images_is_not_sent_one() -> None:
    result = await shaped(done([image(b"x")]), reader=BLIND)
    assert "files" not in result
    assert result["output"][0]["artifactId"] == "af_1"
    assert "files" not in await shaped(
        done([image(b"x" * 100)]), reader=Reader("t", frozenset({"image"}), file_bytes=99)
    )
    assert "files" not in await shaped(done([image(b"x" * 100)]), reader=Reader("t"))


async def test_sounds_and_resources_are_stored_beside_structured_content_too() -> None:
    store = ArtifactStore()
    data = base64.b64encode(b"\x00\x01").decode()
    parts = [
        {"type": "audio", "data": data, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a.zip", "blob": data, "mimeType": "application/zip"}},
        {"type": "resource", "resource": {"uri": "file:///odd", "blob": data, "mimeType": "no type"}},
        {"type": "resource_link", "uri": "file:///b"},
    ]
    result = await shaped(done({"structuredContent": {"n": 1}, "content": parts}), store)
    sound, archive, odd, link = result["output"]["content"]
    assert sound == {"type": "audio", "artifactId": "af_1", "version": 1, "contentType": "audio/wav", "size": 2}
    assert (archive["uri"], archive["contentType"], archive["artifactId"]) == (
        "file:///a.zip",
        "application/zip",
        "af_2",
    )
    assert odd["contentType"] == "application/octet-stream"
    assert link == parts[3]
    assert result["output"]["structuredContent"] == {"n": 1}
    assert store.named("docs__search-result-1.zip").data == b"\x00\x01"


async def test_what_is_no_base64_is_dropped_with_the_reason() -> None:
    part = {"type": "image", "data": "no base64 at all!", "mimeType": "image/png"}
    result = await shaped(done([part]))
    assert result["output"] == [
        {"type": "image", "dropped": "its data is no base64", "contentType": "image/png", "size": 17}
    ]


async def test_the_longest_texts_go_first_and_short_ones_stay() -> None:
    store = ArtifactStore()
    parts = [{"type": "text", "text": letter * size} for letter, size in (("a", 20_000), ("b", 900), ("c", 30_000))]
    result = await shaped(done(parts), store)
    first, second, third = result["output"]
    assert (first, second) == (parts[0], parts[1])
    assert (third["type"], third["size"], third["artifactId"]) == ("text", 30_000, "af_1")
    assert store.named("docs__search-result-2.txt").data == b"c" * 30_000


async def test_more_parts_than_fit_are_stored_as_a_whole() -> None:
    store = ArtifactStore()
    parts = [{"type": "text", "text": "x" * 1500} for _ in range(500)]
    result = await shaped(done(parts), store)
    assert result["output"]["contentType"] == "application/json"
    assert json_bytes(result) <= limits.RESULT_INLINE_BYTES
    assert store.opened <= limits.RESULT_PARTS + 1


async def test_a_store_that_refuses_leaves_the_preview_with_the_reason() -> None:
    store = ArtifactStore(file_bytes=10)
    result = await shaped(done("w" * 100_000), store)
    assert "limitBytes is 10" in result["output"]["dropped"]
    assert result["output"]["size"] == 100_000
    assert result["output"]["preview"].startswith("www")
    assert "artifactId" not in result["output"]
    (part,) = (await shaped(done([image(b"i" * 50)]), store))["output"]
    assert (part["contentType"], part["size"]) == ("image/png", 50)
    assert "limitBytes" in part["dropped"]


@pytest.mark.parametrize("code", ["unavailable", "internal"])
async def test_a_store_that_is_out_for_a_moment_is_asked_again(code: str) -> None:
    faults = [RuntimeRefusal(code, "out")]

    def fault(params: JsonObject) -> None:
        if faults:
            raise faults.pop()

    result = await shaped(done("w" * 100_000), ArtifactStore(fault=fault))
    assert "artifactId" in result["output"]


async def test_a_store_that_stays_out_leaves_the_preview() -> None:
    def fault(params: JsonObject) -> None:
        raise RuntimeRefusal("unavailable", "the store is out")

    result = await shaped(done("w" * 100_000), ArtifactStore(fault=fault))
    assert "the store is out" in result["output"]["dropped"]


async def test_a_second_run_of_the_same_call_stores_nothing_new() -> None:
    store = ArtifactStore()
    value = done([{"type": "text", "text": "t" * 50_000}, image(b"i" * 10), {"type": "text", "text": "u" * 50_000}])
    first = await shaped(value, store)
    opened = store.opened
    assert await shaped(value, store) == first
    assert store.opened == opened
    await shaped(done([{"type": "text", "text": "T" * 50_000}]), store)
    assert store.opened == opened + 1, "other bytes are another store"


async def test_a_failure_over_the_cap_is_cut_with_a_note() -> None:
    result = await shaped({"kind": "failed", "code": "mcp.tool", "message": "m" * 100_000})
    assert (result["kind"], result["code"]) == ("failed", "mcp.tool")
    assert "characters omitted" in result["message"]
    assert json_bytes(result) <= limits.RESULT_INLINE_BYTES


async def test_a_result_that_no_prompt_could_hold_fails_and_not_the_turn() -> None:
    for levels, kept in ((150, True), (250, False), (20_000, False)):
        nested: Json = 1
        for _ in range(levels):
            nested = {"a": [nested]} if levels % 2 else [nested]
        result = await shaped(done(nested))
        assert (result.get("code") is None) == kept
        assert kept or "levels deep" in result["message"]


async def test_a_result_of_many_megabytes_is_sent_in_pieces_while_the_loop_goes_on() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    store = ArtifactStore()
    rows = [{"n": n, "text": "x" * 100} for n in range(60_000)]
    await shaped(done(rows), store)
    ticking.cancel()
    assert store.named("docs__search-result.json").data == encode(rows)
    assert store.largest <= limits.ARTIFACT_RANGE_BYTES
    assert ticks > 10


BOTH = done([{"type": "text", "text": "t" * 100_000}, image(b"i" * 3000), {"type": "text", "text": "short"}])


class Server:
    """A provider of one MCP tool, whose gate answers a call that is sent again with the same bytes."""

    def __init__(self) -> None:
        self.ran = 0

    def tools(self) -> Iterable[Tool]:
        yield Tool(
            name="docs__search",
            description="",
            input_schema={"type": "object"},
            target=McpTarget(kind="mcp", server="docs", tool="search"),
            parallel=True,
            check=lambda arguments: (),
            run=self.run,
        )

    async def run(self, arguments: JsonObject, execution: Execution) -> Fate:
        self.ran += 1
        return Known(BOTH)


def searching() -> Runtime:
    answers = script(calls(("docs__search", {"q": 1}), ("docs__search", {"q": 2})), text("Done."))
    return Runtime(answers, artifacts=ArtifactStore(chunk_bytes=40_000), limits={"chunkBytes": 40_000})


@pytest.mark.parametrize("at", range(60))
async def test_a_call_cut_off_at_any_point_is_shaped_alike_and_stored_once(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    monkeypatch.setattr(Loop, "_providers", lambda loop, skills: iter([server]))
    runtime = searching()
    await until_killed(runtime, Sandbox(), at, model=MODEL)
    if not runtime.outputs:
        runtime.artifacts.uploads.clear()  # they ended with the run
        assert await runtime.turn(Sandbox(), model=MODEL).run() == Reported("completed")
    results = runtime.transcript[2]["results"]
    for result in results:
        first, second, third = result["output"]
        stored = [runtime.artifacts.versions[part["artifactId"]] for part in (first, second)]
        assert [len(versions) for versions in stored] == [1, 1]
        assert [versions[0].data for versions in stored] == [b"t" * 100_000, b"i" * 3000]
        assert result["files"][0]["reference"]["artifactId"] == second["artifactId"]
        assert third == {"type": "text", "text": "short"}
    assert len(runtime.artifacts.versions) == 4, "each call's two parts, once"
    assert server.ran <= 4


async def test_the_points_are_fewer_than_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "_providers", lambda loop, skills: iter([Server()]))
    runtime = searching()
    assert await runtime.turn(Sandbox(world=runtime.world), model=MODEL).run() == Reported("completed")
    assert 30 < len(runtime.world.points) <= 60


parts = st.one_of(
    st.builds(lambda t, n: {"type": "text", "text": t * n}, st.text(min_size=1, max_size=30), st.integers(1, 3000)),
    st.builds(lambda data: image(data * 500), st.binary(max_size=40)),
    st.builds(
        lambda t, n: {"type": "resource", "resource": {"uri": t, "text": t * n}},
        st.text(max_size=9),
        st.integers(1, 999),
    ),
    st.builds(lambda v: {"type": "other", "value": v}, values),
)
outputs = st.one_of(
    st.lists(parts, max_size=8),
    st.builds(lambda t, n: t * n, st.text(min_size=1, max_size=40), st.integers(1, 5000)),
    st.builds(lambda v, n: [v] * n, values, st.integers(0, 800)),
    st.builds(lambda v, n: {"structuredContent": [v] * n, "content": []}, values, st.integers(0, 400)),
    values,
)


@settings(max_examples=150, deadline=None)
@given(
    outputs,
    st.sampled_from([1, 2, 7, 64]),
    st.sampled_from([60_000, 300_000, limits.RECORD_ENTRY_BYTES]),
    st.booleans(),
)
async def test_whatever_a_tool_answers_it_fits(output: Json, calls: int, entry: int, refused: bool) -> None:
    store = ArtifactStore(file_bytes=0 if refused else 10**9)
    share = share_bytes(entry, calls)
    value = done(output)
    result = fit(await shaped(value, store, most_bytes=share), share)
    assert json_bytes(result) <= min(share, limits.RESULT_INLINE_BYTES) or calls == 1
    assert json_bytes(result) <= share
    if json_bytes(value) <= min(share, limits.RESULT_INLINE_BYTES) and "data" not in str(value):
        assert result == value


async def of_a_step(sizes: list[int]) -> list[JsonObject]:
    """The outcomes of a step whose calls answer so many bytes each."""
    store, budget = ArtifactStore(), StepBudget()
    made = shaper(store)
    return [
        await made.shape(
            done("x" * size),
            effect_id=f"{EFFECT}{n}",
            tool_name="t",
            most_bytes=limits.STEP_RESULT_BYTES,
            budget=budget,
        )
        for n, size in enumerate(sizes)
    ]


async def test_a_large_result_beside_many_small_ones_stays_whole() -> None:
    outcomes = await of_a_step([100] * 19 + [20_000] + [2_000] * 10)
    assert not any("truncated" in outcome for outcome in outcomes)


async def test_once_a_steps_budget_is_spent_a_result_is_a_stub_and_small_ones_still_pass() -> None:
    outcomes = await of_a_step([25_000] * 20 + [900])
    whole = [outcome for outcome in outcomes[:-1] if "truncated" not in outcome]
    assert len(whole) == limits.STEP_RESULT_BYTES // 25_100
    assert len(encode(outcomes[-2])) <= limits.RESULT_STUB_BYTES
    assert outcomes[-2]["output"]["artifactId"]
    assert outcomes[-1] == done("x" * 900)
    assert len(encode(outcomes)) <= limits.STEP_RESULT_BYTES + 20 * limits.RESULT_SMALL_BYTES


async def test_many_large_answers_of_a_step_are_held_a_few_at_a_time_and_none_is_lost() -> None:
    named = [("docs__search", {"n": number}) for number in range(12)]
    runtime = Runtime(script(calls(*named), text("Done.")), room=Room(700_000))
    runtime.tools.snapshot = {"servers": [{"name": "docs", "tools": [tool("search", enabled=True)]}]}
    runtime.tools.answers = lambda path, body: texts(str(body["arguments"]["n"]) * 300_000)
    assert await runtime.turn(Sandbox()).run() == Reported("completed")
    results = [result for entry in runtime.transcript for result in entry.get("results", [])]
    assert all(result["output"]["size"] >= 300_000 for result in results)
    assert len(runtime.artifacts.versions) == 12
    assert 600_000 < runtime.most_held <= 700_000
    assert runtime.room.held == 0
