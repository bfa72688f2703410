"""``read_artifact`` and ``save_artifact``: what the model gets, and what it is told (Harness API v5, section 4b)."""

from __future__ import annotations

from typing import Any

import pytest

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import encode
from pod_host.errors import WorkerLost
from pod_host.sandbox.outcomes import Outcome
from pod_host.turn import Reported
from tests.turn.artifact_store import ArtifactStore
from tests.turn.double import TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox

SEES: JsonObject = {"provider": "p", "id": "m", "inputs": ["text", "image"]}
EFFECT = f"{TURN}:0:tool:step-1/0"


async def results(
    *asked: tuple[str, Json], store: ArtifactStore, sandbox: Sandbox | None = None, **members: Any
) -> list[JsonObject]:
    """The results of these calls, all of one step. ``members``: of TurnStart."""
    runtime = Runtime(script(calls(*asked), text("Done.")), artifacts=store)
    runtime.limits = members.pop("limits", {"chunkBytes": store.chunk_bytes})
    assert await runtime.turn(sandbox, **members).run() == Reported("completed")
    found: list[JsonObject] = runtime.transcript[2]["results"]
    return found


async def read(store: ArtifactStore, **members: Any) -> JsonObject:
    model = members.pop("model", SEES)
    (result,) = await results(("read_artifact", {"artifactId": "af_1", **members}), store=store, model=model)
    return result


async def test_a_text_is_read_page_by_page_to_its_end() -> None:
    words = "".join(f"{n} äöü€😀\n" for n in range(9000))
    store = ArtifactStore(chunk_bytes=10_000)
    store.put(words.encode())
    shown, offset, pages = "", 0, 0
    while True:
        output = (await read(store, offset=offset))["output"]
        assert output["offset"] == offset
        assert len(encode(output["content"])) - 2 <= limits.ARTIFACT_PAGE_BYTES
        shown += output["content"]
        pages += 1
        if "nextOffset" not in output:
            break
        offset = output["nextOffset"]
    assert shown == words
    assert pages == -(-len(words.encode()) // limits.ARTIFACT_PAGE_BYTES)
    facts = {
        "artifactId": "af_1",
        "version": 1,
        "name": "a.txt",
        "contentType": "text/plain",
        "size": len(words.encode()),
    }
    assert {name: output[name] for name in facts} == facts


async def test_a_page_holds_whole_characters_one_at_least() -> None:
    store = ArtifactStore()
    store.put("a€😀b".encode())
    shown = [
        (await read(store, offset=offset, length=length))["output"]
        for offset, length in ((0, 3), (1, 1), (4, 2), (5, 9))
    ]
    assert [(page["offset"], page["content"], page.get("nextOffset")) for page in shown] == [
        (0, "a", 1),
        (1, "€", 4),
        (4, "😀", 8),
        (8, "b", None),
    ]


async def test_text_that_grows_in_json_is_cut_to_a_page() -> None:
    store = ArtifactStore()
    store.put(b"\x01" * 50_000)
    output = (await read(store))["output"]
    assert len(encode(output["content"])) - 2 <= limits.ARTIFACT_PAGE_BYTES
    assert output["nextOffset"] == len(output["content"]) == limits.ARTIFACT_PAGE_BYTES // 6


async def test_pages_of_one_step_share_it_without_a_gap() -> None:
    store = ArtifactStore()
    store.put(b"x" * 1_000_000)
    asked = [("read_artifact", {"artifactId": "af_1", "offset": n * 1000}) for n in range(40)]
    for result in await results(*asked, store=store):
        output = result["output"]
        assert set(output["content"]) == {"x"}, "nothing was cut out of its middle"
        assert output["offset"] + len(output["content"]) == output["nextOffset"]


async def test_a_version_is_read_as_it_was() -> None:
    store = ArtifactStore()
    store.put(b"old")
    store.put(b"new", artifactId="af_1")
    assert (await read(store))["output"]["content"] == "new"
    assert (await read(store, version=1))["output"]["content"] == "old"


async def test_an_image_is_shown_and_not_read() -> None:
    store = ArtifactStore()
    store.put(b"\x89PNG", "chart.png", "image/png")
    result = await read(store)
    reference = {"artifactId": "af_1", "version": 1, "name": "chart.png"}
    assert result["files"] == [{"mediaType": "image/png", "reference": reference}]
    assert "content" not in result["output"]


@pytest.mark.parametrize(
    ("put", "asked", "code", "said"),
    [
        ({}, {"artifactId": "af_9"}, "artifact.not_found", "af_9"),
        ({}, {"artifactId": "af_1", "version": 2}, "artifact.not_found", "af_1"),
        ({}, {"artifactId": "af_1", "offset": 99}, "artifact.invalid_input", "offset is 99"),
        ({"data": b"\xff\xfe"}, {"artifactId": "af_1"}, "artifact.not_text", "no UTF-8"),
        ({"kind": "folder"}, {"artifactId": "af_1"}, "artifact.not_text", "folder"),
        ({"content_type": "audio/wav"}, {"artifactId": "af_1"}, "artifact.not_text", "audio/wav"),
        ({"content_type": "image/png", "data": b"x" * 99}, {"artifactId": "af_1"}, "artifact.not_text", "99 bytes"),
    ],
)
async def test_what_cannot_be_read_is_told(put: JsonObject, asked: JsonObject, code: str, said: str) -> None:
    store = ArtifactStore()
    store.put(**{"data": b"text", **put})
    (result,) = await results(("read_artifact", asked), store=store, model=SEES, limits={"modelFileBytes": 50})
    assert (result["kind"], result["code"]) == ("failed", code)
    assert said in result["message"]


async def test_a_file_of_the_workspace_is_saved_in_chunks_through_the_worker() -> None:
    data = bytes(range(256)) * 10_000
    store = ArtifactStore(chunk_bytes=100_000)
    sandbox = Sandbox(files={"out/data.bin": data})
    (result,) = await results(("save_artifact", {"path": "/workspace/out/data.bin"}), store=store, sandbox=sandbox)
    kept = store.named("data.bin")
    assert kept.data == data
    assert kept.effect_id == EFFECT
    assert list(store.keys) == [EFFECT]
    assert store.largest <= 100_000
    assert max(length for _, _, length in sandbox.reads) <= limits.ARTIFACT_RANGE_BYTES
    assert result["output"] == {
        "artifactId": "af_1",
        "version": 1,
        "name": "data.bin",
        "contentType": "application/octet-stream",
        "size": len(data),
        "sha256": kept.meta["sha256"],
    }


async def test_a_text_is_saved_under_its_name_and_as_a_new_version() -> None:
    store = ArtifactStore()
    (first,) = await results(("save_artifact", {"content": "# ä", "name": "report.md"}), store=store)
    assert (first["output"]["contentType"], store.named("report.md").data) == ("text/markdown", "# ä".encode())
    store.keys.clear()  # each of these turns asks under the same effect id
    (note,) = await results(("save_artifact", {"content": "", "name": "note"}), store=store)
    assert note["output"]["contentType"] == "text/plain"
    store.keys.clear()
    asked = {"content": "# b", "artifactId": "af_1", "name": "other", "contentType": "text/x-md"}
    (newer,) = await results(("save_artifact", asked), store=store)
    assert (newer["output"]["version"], newer["output"]["name"], newer["output"]["contentType"]) == (
        2,
        "report.md",
        "text/x-md",
    )


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"path": "none"}, "artifact.not_found"),
        ({"content": "x", "artifactId": "af_9"}, "artifact.not_found"),
        ({"content": "x" * 200, "name": "a"}, "artifact.too_large"),
        ({"path": "large"}, "artifact.too_large"),
        ({"content": "x", "name": "a/b"}, "artifact.rejected"),
        ({"content": "\ud800", "name": "a"}, "artifact.rejected"),
        ({"content": "x", "name": "\ud800"}, "artifact.rejected"),
        ({"content": "x"}, "tool.invalid-input"),
        ({"content": "x", "path": "y"}, "tool.invalid-input"),
        ({"name": "x"}, "tool.invalid-input"),
        ({"content": "x", "name": "n" * 256}, "tool.invalid-input"),
    ],
)
async def test_what_cannot_be_saved_is_told(asked: JsonObject, code: str) -> None:
    sandbox = Sandbox(files={"large": b"x" * 200})
    store = ArtifactStore(file_bytes=100)
    (result,) = await results(("save_artifact", asked), store=store, sandbox=sandbox)
    assert (result["kind"], result["code"]) == ("failed", code)
    assert store.versions == {}


async def test_without_a_sandbox_no_file_can_be_saved() -> None:
    (result,) = await results(("save_artifact", {"path": "a"}), store=ArtifactStore())
    assert result["code"] == "artifact.no_sandbox"


async def test_a_file_that_shrinks_while_it_is_saved_is_not_stored() -> None:
    sandbox = Sandbox(files={"log": b"x" * 2_000_000})

    def shrink(path: str, offset: int) -> None:
        sandbox.files[path] = b"x" * 900_000

    sandbox.after_read = shrink
    store = ArtifactStore()
    (result,) = await results(("save_artifact", {"path": "log"}), store=store, sandbox=sandbox)
    assert result["code"] == "artifact.rejected"
    assert (store.versions, store.uploads) == ({}, {})


async def test_a_worker_that_dies_fails_the_call_alone() -> None:
    class Dying(Sandbox):
        async def read_bytes(self, path: str, offset: int, length: int) -> Outcome:
            raise WorkerLost("the worker died")

    (result,) = await results(("save_artifact", {"path": "log"}), store=ArtifactStore(), sandbox=Dying())
    assert result["code"] == "sandbox.error"


async def test_the_prompt_says_what_artifacts_can_do_and_what_is_saved_by_itself() -> None:
    prompts: list[str] = []
    for sandbox in (Sandbox(), None):
        runtime = Runtime(
            script(text("Hi")), at_gate=lambda call: prompts.append(call["prompt"][0]["content"][0]["text"])
        )
        await runtime.turn(sandbox).run()
    assert all("read_artifact reads one, save_artifact stores one." in prompt for prompt in prompts)
    assert ["/workspace/outputs" in prompt for prompt in prompts] == [True, False]
