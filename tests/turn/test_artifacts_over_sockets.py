"""Artifacts from end to end: the turn, the worker's files, and the embedded Runtime's store, with real sockets between."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pod_host.client import Channel, Gates, Run, Served
from pod_host.contract.base import Empty, JsonObject
from pod_host.contract.turn_start import HarnessLimits, ModelDescriptor, TurnStart
from pod_host.contract.work import HelloParams, LeaseResult
from pod_host.dev.agent import Agent
from pod_host.dev.config import ArtifactLimits
from pod_host.host.workspace import Workspaces
from pod_host.turn import FileCache, Reported, TranscriptCache, Turn
from tests.dev.conftest import Build, ScriptedModel, World, build
from tests.dev.tool_rig import PIXEL, Books, mcp_server
from tests.sandbox.conftest import Box, box, make_box, open_directory
from tests.turn.double import calls, text

__all__ = ["box", "build", "make_box", "open_directory"]

SMALL = HarnessLimits(chunk_bytes=70_000)


def large() -> ScriptedModel:
    """A model whose window these conversations do not fill."""
    reads = ["text", "image"]
    return ScriptedModel(ModelDescriptor(provider="fixture", id="scripted", inputs=reads, context_window=1_000_000))


@asynccontextmanager
async def turns(world: World, box: Box) -> AsyncIterator[Any]:
    """Gives what leases one run and runs its turn to the end."""
    await world.pod.join()

    def serve(served: Served) -> None:
        raise AssertionError(served.method)

    url = world.runtime.status()["urls"]["harness"]
    channel = await Channel.connect(
        url, world.pod.host_token, tls=None, on_request=serve, on_message=lambda method, params: None
    )
    gates = Gates(world.runtime.gates_url, None)
    workspaces = Workspaces(box.sandbox, lambda declared, traceparent: box.environment, box.config.skills)
    transcripts, files = TranscriptCache(), FileCache()
    await channel.request("hello", HelloParams(api=5, name="pod-host", version="0", features={}))

    async def one() -> None:
        lease: LeaseResult = await channel.request("lease", Empty())
        run, start = Run(channel, lease.run), TurnStart.read(lease.input)
        turn = Turn(
            run=run, start=start, gates=gates, sandbox=workspaces.of_run(run, start),
            transcripts=transcripts, files=files, notes=(),
        )  # fmt: skip
        assert await turn.run() == Reported("completed")

    try:
        yield one
    finally:
        await gates.close()
        await channel.close("done")


async def results(world: World, session: str) -> list[JsonObject]:
    transcript = await world.north.get(f"/v1/sessions/{session}/transcript")
    return [result for entry in transcript["entries"] for result in entry.get("results", [])]


async def artifact(world: World, session: str, name: str) -> JsonObject:
    """The event of the newest artifact of this name."""
    events = await world.north.events(session)
    found = [event for event in events if event["type"].startswith("artifact.") and event["artifact"]["name"] == name]
    event: JsonObject = found[-1]
    return event


async def test_files_are_saved_read_and_exported_in_chunks(build: Build, box: Box) -> None:
    world = await build(model=large(), limits=SMALL)
    content = os.urandom(300_000)
    (box.workspace / "outputs" / "deep").mkdir(parents=True)
    (box.workspace / "outputs" / "deep" / "data.bin").write_bytes(content)
    (box.workspace / "outputs" / "notes.md").write_text("# Notes\n")
    (box.workspace / "outputs" / "link").symlink_to("/etc/passwd")
    words = "".join(f"{n} äöü\n" for n in range(20_000))
    (box.workspace / "words.txt").write_text(words)
    world.model.answers = [
        calls(("save_artifact", {"path": "words.txt"}), ("save_artifact", {"content": "# R", "name": "report.md"})),
    ]
    session = await world.north.session()
    async with turns(world, box) as run_one:
        await world.north.say(session, "Save it.")
        await run_one()
        saved, report = [result["output"] for result in await results(world, session)]
        assert (saved["name"], saved["size"]) == ("words.txt", len(words.encode()))
        assert report["contentType"] == "text/markdown"
        created = await artifact(world, session, "words.txt")
        assert created["callId"] == "c0"
        outputs = (await artifact(world, session, "outputs"))["artifact"]
        assert (outputs["kind"], outputs["version"], outputs["size"]) == ("folder", 1, len(content) + 8)

        shown, offset = "", 0
        while True:
            world.model.answers = [calls(("read_artifact", {"artifactId": saved["artifactId"], "offset": offset}))]
            await world.north.say(session, "Read it.")
            await run_one()
            output = (await results(world, session))[-1]["output"]
            shown += output["content"]
            if "nextOffset" not in output:
                break
            offset = output["nextOffset"]
        assert shown == words

        (box.workspace / "outputs" / "notes.md").write_text("# More\n")
        await world.north.say(session, "Go on.")
        await run_one()
    newer = (await artifact(world, session, "outputs"))["artifact"]
    assert (newer["artifactId"], newer["version"]) == (outputs["artifactId"], 2), "unchanged folders were no version"
    assert (await world.north.get("/v1/warnings"))["warnings"] == []


async def test_a_folder_past_a_limit_is_claimed_and_the_turn_is_completed(build: Build, box: Box) -> None:
    world = await build(model=large(), limits=SMALL, artifact_limits=ArtifactLimits(file=1000, total=100_000))
    (box.workspace / "outputs").mkdir()
    (box.workspace / "outputs" / "large").write_bytes(b"x" * 1001)
    session = await world.north.session()
    async with turns(world, box) as run_one:
        await world.north.say(session, "Hi")
        await run_one()
    claims = [event for event in await world.north.events(session) if event["type"] == "artifact.export.skipped"]
    assert len(claims) == 1
    assert {"reason": "file_too_large", "limit": 1000, "path": "large"}.items() <= claims[0].items()


async def test_a_message_file_reaches_the_model_and_a_long_mcp_answer_is_stored(build: Build, box: Box) -> None:
    books = Books()
    async with mcp_server(books) as url:
        agent = Agent(name="tester", mcp_servers=({"name": "library", "type": "streamable-http", "url": url},))
        world = await build(agent, model=large(), limits=SMALL)
        world.model.answers = [
            calls(("save_artifact", {"content": "the text of it", "name": "notes.txt"})),
            text("Saved."),
            calls(("library__whole", {"size": 200_000}), ("library__cover", {})),
        ]
        session = await world.north.session()
        async with turns(world, box) as run_one:
            await world.north.say(session, "Save it.")
            await run_one()
            kept = (await results(world, session))[0]["output"]
            reference = {"artifactId": kept["artifactId"], "version": 1, "name": "notes.txt"}
            part = {"type": "media", "mediaType": "text/plain", "reference": reference}
            await world.north.say(session, {"content": [{"type": "text", "text": "Read this."}, part]})
            await run_one()
    _, long, cover = await results(world, session)
    assert long["output"]["truncated"] is True
    assert long["output"]["size"] == 200_000
    stored = await artifact(world, session, "library__whole-result.txt")
    assert (stored["artifact"]["size"], stored["callId"]) == (200_000, "c0")
    assert cover["files"][0]["reference"]["artifactId"] == cover["output"][1]["artifactId"]
    assert (await artifact(world, session, "library__cover-result-1.png"))["artifact"]["size"] == len(PIXEL)
    said = [item for _, call in world.model.calls for item in call["prompt"] if item.get("role") == "user"]
    assert "the text of it" in _texts(said[-1])
    last = world.model.calls[-1][1]["prompt"][-1]
    assert [part["type"] for part in last["content"]] == ["text", "media"]
    assert (await world.north.get("/v1/warnings"))["warnings"] == []


def _texts(item: JsonObject) -> str:
    return "\n".join(part.get("text", "") for part in item["content"])
