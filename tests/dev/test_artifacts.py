"""Artifacts: reads in ranges, uploads in steps, keys, limits, folders."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from pod_host.contract.turn_start import HarnessLimits
from pod_host.dev.agent import Agent
from pod_host.dev.config import ArtifactLimits
from pod_host.dev.skills import Skill
from tests.dev.conftest import Build, World
from tests.dev.harness import JsonObject, Run
from tests.dev.test_leases import begun, code_of

SMALL = HarnessLimits(chunk_bytes=10, folder_entries=2)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def write(run: Run, op: str, **params: Any) -> JsonObject:
    answer: JsonObject = await run.ask("artifact.write", op=op, **params)
    return answer


async def store(run: Run, key: str, data: bytes, **names: Any) -> JsonObject:
    written = await write(run, "begin", key=key, base64=b64(data), **(names or {"name": "a.txt"}))
    artifact: JsonObject = written["artifact"]
    return artifact


async def test_an_upload_in_steps_is_read_back_in_ranges(build: Build) -> None:
    world = await build(limits=SMALL)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        opened = await write(run, "begin", key="k", name="notes.md", size=15)
        assert (opened["status"], opened["received"]) == ("open", 0)
        upload = {"uploadId": opened["uploadId"]}
        first = await write(run, "chunk", **upload, offset=0, base64=b64(b"0123456789"))
        assert first["received"] == 10
        assert await write(run, "chunk", **upload, offset=0, base64=b64(b"0123456789")) == first  # its answer was lost
        assert await code_of(write(run, "chunk", **upload, offset=5, base64=b64(b"x"))) == "invalid"
        assert await code_of(write(run, "chunk", **upload, offset=10, base64=b64(b"x" * 11))) == "limit_exceeded"
        await write(run, "chunk", **upload, offset=10, base64=b64(b"abcde"))
        written = await write(run, "commit", **upload)
        assert (written["status"], written["created"]) == ("written", True)
        artifact = written["artifact"]
        assert artifact == {
            "artifactId": artifact["artifactId"],
            "kind": "file",
            "name": "notes.md",
            "version": 1,
            "contentType": "text/markdown",
            "size": 15,
            "sha256": hashlib.sha256(b"0123456789abcde").hexdigest(),
            "tenantWide": False,
        }
        named = {"artifactId": artifact["artifactId"]}
        page = await run.ask("artifact.read", **named)
        assert (base64.b64decode(page["base64"]), page["eof"]) == (b"0123456789", False)
        rest = await run.ask("artifact.read", **named, version=1, offset=10, length=9)
        assert (base64.b64decode(rest["base64"]), rest["eof"]) == (b"abcde", True)
        assert (await run.ask("artifact.read", **named, length=0))["base64"] == ""
        end = await run.ask("artifact.read", **named, offset=15)
        assert (end["base64"], end["eof"]) == ("", True)
        assert await code_of(run.ask("artifact.read", **named, offset=16)) == "invalid"
        assert await code_of(run.ask("artifact.read", **named, length=11)) == "limit_exceeded"
        assert await code_of(run.ask("artifact.read", **named, version=2)) == "not_found"


async def test_a_key_writes_once(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        first = await store(run, "same", b"a")
        again = await write(run, "begin", key="same", name="other", base64=b64(b"b"))
        assert again == {"status": "written", "artifact": first, "created": False}
        newer = await store(run, "new", b"bb", artifactId=first["artifactId"])
        assert (newer["artifactId"], newer["version"], newer["name"]) == (first["artifactId"], 2, "a.txt")
        latest = await run.ask("artifact.read", artifactId=first["artifactId"])
        assert base64.b64decode(latest["base64"]) == b"bb"
        old = await run.ask("artifact.read", artifactId=first["artifactId"], version=1)
        assert base64.b64decode(old["base64"]) == b"a"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "invalid"),
        ({"name": "a/b"}, "invalid"),
        ({"name": ".."}, "invalid"),
        ({"name": "a", "contentType": "text"}, "invalid"),
        ({"name": "a", "effectId": "none"}, "invalid"),
        ({"name": "a", "base64": "***"}, "invalid"),
        ({"name": "a", "sameName": True}, "invalid"),
        ({"artifactId": "af_none"}, "not_found"),
        ({"name": "a", "size": 101}, "limit_exceeded"),
    ],
)
async def test_a_begin_that_cannot_be(build: Build, params: JsonObject, code: str) -> None:
    world = await build(artifact_limits=ArtifactLimits(file=100, total=150))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert await code_of(write(run, "begin", key="k", **params)) == code


async def test_the_limits_are_of_a_file_and_of_everything(build: Build) -> None:
    world = await build(artifact_limits=ArtifactLimits(file=100, total=150))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        assert (await write(run, "begin", key="open", name="x"))["maxBytes"] == 100
        await store(run, "1", b"x" * 100)
        assert (await write(run, "begin", key="open2", name="x"))["maxBytes"] == 50
        assert await code_of(store(run, "2", b"y" * 51)) == "limit_exceeded"
        await store(run, "3", b"y" * 50)


async def test_another_sessions_artifacts_are_not_there(world: World) -> None:
    async with world.pod.connected() as channel:
        run, other = await begun(world, channel), await begun(world, channel)
        artifact = await store(run, "k", b"a")
        assert await code_of(other.ask("artifact.read", artifactId=artifact["artifactId"])) == "not_found"
        assert await code_of(store(other, "k", b"b", artifactId=artifact["artifactId"])) == "not_found"


async def test_an_upload_ends_with_its_run_or_its_abort(world: World) -> None:
    async with world.pod.connected() as channel:
        run, other = await begun(world, channel), await begun(world, channel)
        first = {"uploadId": (await write(run, "begin", key="a", name="a"))["uploadId"]}
        second = {"uploadId": (await write(run, "begin", key="b", name="b"))["uploadId"]}
        assert await code_of(write(other, "commit", **first)) == "invalid"
        assert await write(run, "abort", **first) == {"status": "aborted"}
        assert await write(run, "abort", **first) == {"status": "aborted"}
        assert await code_of(write(run, "chunk", **first, offset=0, base64="")) == "invalid"
        await run.ask("lease.release", reason="shutdown")
        again = await channel.lease()
        assert await code_of(write(again, "commit", **second)) == "invalid"
    assert list((world.config.state_dir / "uploads").iterdir()) == []


async def test_a_stored_result_names_the_call_that_it_came_from(world: World) -> None:
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        effect = run.tool_intent("bash", {"kind": "sandbox"}, {})
        await run.intent(effect)
        model = run.model_intent()
        await run.intent(model, call=run.model_call())
        assert await code_of(write(run, "begin", key="m", name="m", effectId=model["effectId"])) == "invalid"
        await store(run, effect["effectId"], b"x", name="out.txt", effectId=effect["effectId"])
    created = await world.north.until("artifact.created", run.session_id)
    assert created["callId"] == effect["context"]["callId"]
    assert created["artifact"]["name"] == "out.txt"


async def folder(run: Run, key: str, files: dict[str, bytes], **names: Any) -> JsonObject:
    opened = await write(run, "begin", kind="folder", key=key, **names)
    if opened["status"] == "written":
        return opened
    upload = {"uploadId": opened["uploadId"]}
    for path, data in files.items():
        await write(
            run, "file", **upload, path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest(), base64=b64(data)
        )
    return await write(run, "commit", **upload)


async def test_a_folder_is_versioned_by_its_files(build: Build) -> None:
    world = await build(limits=SMALL)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        first = await folder(run, "outputs:1", {"a": b"1", "b/c": b"2"}, name="outputs", sameName=True)
        assert (first["created"], first["artifact"]["kind"], first["artifact"]["version"]) == (True, "folder", 1)
        same = await folder(run, "outputs:2", {"b/c": b"2", "a": b"1"}, name="outputs", sameName=True)
        assert same == {"status": "written", "artifact": first["artifact"], "created": False, "unchanged": True}
        newer = await folder(run, "outputs:3", {"a": b"3"}, name="outputs", sameName=True)
        assert (newer["artifact"]["artifactId"], newer["artifact"]["version"]) == (first["artifact"]["artifactId"], 2)
        assert (await folder(run, "outputs:3", {}, name="outputs"))["created"] is False
        answer = await run.ask("artifact.read", artifactId=first["artifact"]["artifactId"])
        assert (answer["base64"], answer["eof"], answer["artifact"]["size"]) == ("", True, 1)
        assert await code_of(store(run, "x", b"1", artifactId=first["artifact"]["artifactId"])) == "not_found"


async def test_a_folders_file_comes_in_chunks_and_must_match_its_hash(build: Build) -> None:
    world = await build(limits=SMALL)
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        data = b"0123456789abc"
        digest = hashlib.sha256(data).hexdigest()
        upload = {"uploadId": (await write(run, "begin", kind="folder", key="k", name="f"))["uploadId"]}
        assert (await write(run, "file", **upload, path="a", size=13, sha256=digest))["received"] == 0
        assert (
            await code_of(write(run, "file", **upload, path="b", size=0, sha256=digest)) == "invalid"
        )  # a is not whole
        assert await code_of(write(run, "commit", **upload)) == "invalid"
        await write(run, "chunk", **upload, sha256=digest, offset=0, base64=b64(data[:10]))
        assert (await write(run, "chunk", **upload, sha256=digest, offset=10, base64=b64(data[10:])))["received"] == 13
        for path in ("../x", "/x", "x//y", "x/.", "a"):
            assert await code_of(write(run, "file", **upload, path=path, size=1, sha256=digest)) == "invalid"
        await write(
            run, "file", **upload, path="b", size=0, sha256=f"sha256:{hashlib.sha256(b'').hexdigest()}", base64=""
        )
        assert await code_of(write(run, "file", **upload, path="c", size=0, sha256=digest)) == "limit_exceeded"
        assert (await write(run, "commit", **upload))["artifact"]["size"] == 13

        upload = {"uploadId": (await write(run, "begin", kind="folder", key="k2", name="f"))["uploadId"]}
        assert (
            await code_of(write(run, "file", **upload, path="a", size=1, sha256=digest, base64=b64(b"x"))) == "invalid"
        )
        assert await code_of(write(run, "commit", **upload)) == "invalid"  # the upload is over


async def test_a_folder_past_the_total_is_refused_and_nothing_is_stored(build: Build) -> None:
    world = await build(artifact_limits=ArtifactLimits(file=100, total=100))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        upload = {"uploadId": (await write(run, "begin", kind="folder", key="k", name="f"))["uploadId"]}
        data = b"x" * 60
        digest = hashlib.sha256(data).hexdigest()
        await write(run, "file", **upload, path="a", size=60, sha256=digest, base64=b64(data))
        await store(run, "meanwhile", b"y" * 60)
        refused = await write(run, "commit", **upload)
        assert (refused["status"], refused["reason"], refused["limit"]) == ("refused", "tenant_total", 100)


async def test_a_skills_files_are_read_by_their_hash_in_ranges(build: Build) -> None:
    text = b"---\nname: s\ndescription: d\n---\nUse it."
    skill = Skill(name="s", description="d", files={"SKILL.md": text})
    world = await build(Agent(name="skilled", skills={"s": skill}), limits=HarnessLimits(chunk_bytes=20))
    async with world.pod.connected() as channel:
        run = await begun(world, channel)
        (listed,) = run.start["manifest"]["skills"]
        sha256 = listed["files"]["SKILL.md"]
        got = b""
        while True:
            answer = await run.ask("definition.file", sha256=sha256, offset=len(got), length=20)
            got += base64.b64decode(answer["base64"])
            if answer["eof"]:
                break
        assert got == text
        assert answer["size"] == len(text)
        assert await code_of(run.ask("definition.file", sha256="sha256:" + "0" * 64)) == "invalid"
        assert await code_of(run.ask("definition.file", sha256=sha256, length=21)) == "limit_exceeded"
        assert await code_of(run.ask("definition.file", sha256=sha256, offset=len(text) + 1)) == "invalid"
