"""The outputs folder at a completed turn's end, and what is claimed where it could not be stored (v5, section 4b)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pod_host.contract.base import JsonObject
from pod_host.errors import RuntimeRefusal, SandboxError, WorkerLost
from pod_host.sandbox.outcomes import Completed, Failed, Outcome
from pod_host.turn import Reported
from pod_host.turn.text import readable
from tests.turn.artifact_store import ArtifactStore
from tests.turn.double import SESSION, TURN, Runtime, World, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed

FILES = {"outputs/b/table.csv": b"1,2", "outputs/a.md": b"# a", "outputs/large.bin": b"\x00" * 5000, "other": b"x"}
KEY = f"outputs:{TURN}"


async def ran(sandbox: Sandbox | None, store: ArtifactStore | None = None, **limits: int) -> Runtime:
    runtime = Runtime(script(text("Done.")), artifacts=store or ArtifactStore(), limits={"chunkBytes": 1000, **limits})
    runtime.artifacts.chunk_bytes = 1000
    assert await runtime.turn(sandbox).run() == Reported("completed")
    return runtime


def claim(runtime: Runtime) -> tuple[str, JsonObject]:
    (told,) = runtime.claims
    assert (told["sessionId"], told["turnId"]) == (SESSION, TURN)
    asked = [method for method, _ in runtime.requests]
    assert asked.index("event") < asked.index("turn.completed")
    return told["type"], told["payload"]


def stored(runtime: Runtime) -> list[str]:
    return list(runtime.artifacts.keys[KEY].files)


async def test_the_folder_is_saved_by_path_before_the_turn_is_over() -> None:
    runtime = await ran(Sandbox(files=dict(FILES)))
    kept = runtime.artifacts.keys[KEY]
    assert list(kept.files.items()) == [
        ("a.md", ("text/markdown", b"# a")),
        ("b/table.csv", ("text/csv", b"1,2")),
        ("large.bin", ("application/octet-stream", b"\x00" * 5000)),
    ]
    assert (kept.meta["kind"], kept.meta["name"], kept.effect_id) == ("folder", "outputs", None)
    begin = runtime.asked("artifact.write")[0]
    assert begin["sameName"] is True
    assert runtime.artifacts.largest <= 1000
    asked = [method for method, _ in runtime.requests]
    assert asked[-1] == "turn.completed"
    assert runtime.claims == []


@pytest.mark.parametrize("sandbox", [None, Sandbox(), Sandbox(files={"other": b"x"})])
async def test_nothing_is_saved_where_there_is_nothing(sandbox: Sandbox | None) -> None:
    runtime = await ran(sandbox)
    assert (runtime.asked("artifact.write"), runtime.claims) == ([], [])


async def test_only_a_completed_turn_saves() -> None:
    failed = Runtime(script({"kind": "failed", "code": "auth", "message": "no", "retryable": False}))
    assert await failed.turn(Sandbox(files=dict(FILES))).run() == Reported("failed")
    held = Runtime(
        script(calls(("bash", {"command": "x"}))), hold=lambda intent: "pending" if "target" in intent else None
    )
    assert await held.turn(Sandbox(files=dict(FILES))).run() == Reported("waiting")
    assert failed.artifacts.opened == held.artifacts.opened == 0


@pytest.mark.parametrize(
    ("store", "limits", "payload"),
    [
        ({}, {"folderEntries": 2}, {"reason": "too_many_files", "limit": 2}),
        ({"file_bytes": 4000}, {}, {"reason": "file_too_large", "limit": 4000, "path": "large.bin"}),
        ({"total_bytes": 5000}, {}, {"reason": "too_large", "limit": 5000}),
    ],
)
async def test_a_folder_past_a_limit_is_skipped_and_claimed(
    store: dict[str, int], limits: dict[str, int], payload: JsonObject
) -> None:
    runtime = await ran(Sandbox(files=dict(FILES)), ArtifactStore(**store), **limits)  # type: ignore[arg-type]
    kind, told = claim(runtime)
    assert kind == "artifact.export.skipped"
    assert told.pop("message")
    assert told == {"name": "outputs", **payload}
    assert (runtime.artifacts.versions, runtime.artifacts.uploads) == ({}, {})
    assert [params["op"] for params in runtime.asked("artifact.write")] == ["begin", "abort"]


async def test_a_total_that_core_finds_passed_is_claimed_with_its_reason() -> None:
    store = ArtifactStore()

    def fill(params: JsonObject) -> None:
        store.total_bytes = 100

    store.fault = fill
    kind, told = claim(await ran(Sandbox(files=dict(FILES)), store))
    assert kind == "artifact.export.skipped"
    assert told == {"name": "outputs", "reason": "tenant_total", "message": "too much", "limit": 100}


BAD_NAMES = ["outputs/a\nb", "outputs/\udcff", f"outputs/{'x/' * 300}y"]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_file_whose_name_no_artifact_can_have_is_left_out_and_claimed(name: str) -> None:
    runtime = await ran(Sandbox(files={**FILES, name: b"x"}))
    plain = await ran(Sandbox(files=dict(FILES)))
    assert stored(runtime) == stored(plain) != []
    kind, told = claim(runtime)
    assert (kind, told["reason"]) == ("artifact.export.skipped", "files_left_out")
    assert told["path"][:3] in readable(name)
    assert "no artifact can have its name" in told["message"]


class Guarded(Sandbox):
    """Files that may not be read, and a directory."""

    closed = ("outputs/b/table.csv", "outputs/large.bin")

    async def read_bytes(self, path: str, offset: int, length: int) -> Outcome:
        if path in self.closed:
            return Failed("sandbox.error", f"Could not read {path}: Permission denied.")
        return await super().read_bytes(path, offset, length)

    async def list_folder(self, path: str, most: int) -> Outcome:
        listed = await super().list_folder(path, most)
        assert isinstance(listed, Completed)
        entries = [*json.loads(listed.output["bytes"]), ["shut/", None]]
        return Completed({**listed.output, "bytes": json.dumps(entries).encode()})


async def test_what_cannot_be_read_is_left_out_and_named_and_the_rest_is_saved() -> None:
    runtime = await ran(Guarded(files=dict(FILES)))
    assert stored(runtime) == ["a.md"]
    kind, told = claim(runtime)
    assert (kind, told["reason"], told["path"]) == ("artifact.export.skipped", "files_left_out", "shut/")
    assert told["message"] == "Left out: shut/ (it may not be read), and 2 more. The other files are saved."


async def test_a_folder_of_which_nothing_can_be_read_fails_the_export_and_names_a_file() -> None:
    kind, told = claim(await ran(Guarded(files={"outputs/large.bin": b"x"})))
    assert kind == "artifact.export.failed"
    assert "shut/ (it may not be read)" in told["message"]


async def test_a_file_that_the_store_refuses_is_left_out_and_named() -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if params.get("op") == "file" and params["path"] == "a.md":
            raise RuntimeRefusal("invalid", "not on a Monday")

    runtime = Runtime(script(text("Done.")), intercept=refuse)
    assert await runtime.turn(Sandbox(files=dict(FILES))).run() == Reported("completed")
    assert stored(runtime) == ["b/table.csv", "large.bin"]
    _, told = claim(runtime)
    assert told["message"] == "Left out: a.md (not on a Monday). The other files are saved."


async def test_a_worker_that_dies_within_the_export_costs_nothing() -> None:
    class Mortal(Sandbox):
        died = False

        async def read_bytes(self, path: str, offset: int, length: int) -> Outcome:
            if path == "outputs/large.bin" and not self.died:
                self.died = True
                raise WorkerLost("killed")
            return await super().read_bytes(path, offset, length)

    runtime = await ran(Mortal(files=dict(FILES)))
    assert len(stored(runtime)) == 3
    assert runtime.claims == []


async def test_a_folder_of_such_names_alone_fails_the_export_not_the_turn() -> None:
    kind, told = claim(await ran(Sandbox(files=dict.fromkeys(BAD_NAMES, b"x"))))
    assert (kind, told["name"]) == ("artifact.export.failed", "outputs")
    assert "can be stored" in told["message"]


async def test_a_backslash_in_a_name_is_the_stores_to_judge() -> None:
    runtime = await ran(Sandbox(files={**FILES, "outputs/a\\b": b"x"}))
    assert "a\\b" in [params.get("path") for params in runtime.asked("artifact.write")]
    assert stored(runtime) == ["a.md", "b/table.csv", "large.bin"]
    _, told = claim(runtime)
    assert (told["reason"], told["path"]) == ("files_left_out", "a\\b")


async def test_a_refusal_fails_the_export_not_the_turn() -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if params.get("op") == "file":
            raise RuntimeRefusal("internal", "the disk is full")

    runtime = Runtime(script(text("Done.")), intercept=refuse)
    assert await runtime.turn(Sandbox(files=dict(FILES))).run() == Reported("completed")
    kind, told = claim(runtime)
    assert kind == "artifact.export.failed"
    assert "a.md: the disk is full" in told["message"]


async def test_a_claim_that_is_refused_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "event":
            raise RuntimeRefusal("invalid", "no such event")

    runtime = Runtime(script(text("Done.")), intercept=refuse, artifacts=ArtifactStore(file_bytes=1))
    assert await runtime.turn(Sandbox(files=dict(FILES))).run() == Reported("completed")
    assert "event.refused" in caplog.text


@pytest.mark.parametrize("fault", [SandboxError("no worker"), Failed("sandbox.error", "Permission denied")])
async def test_a_folder_that_cannot_be_listed_fails_the_export_not_the_turn(fault: SandboxError | Failed) -> None:
    class Broken(Sandbox):
        async def list_folder(self, path: str, most: int) -> Outcome:
            if isinstance(fault, SandboxError):
                raise fault
            return fault

    kind, told = claim(await ran(Broken()))
    assert (kind, told["message"]) == ("artifact.export.failed", str(getattr(fault, "message", fault)))


async def test_the_form_of_the_hash_that_core_takes_is_found() -> None:
    runtime = await ran(Sandbox(files=dict(FILES)), ArtifactStore(hash_prefix="sha256:"))
    assert len(runtime.artifacts.keys[KEY].files) == 3
    assert runtime.claims == []


@pytest.mark.parametrize("op", ["begin", "file", "chunk", "commit"])
async def test_a_lost_answer_costs_nothing(op: str) -> None:
    lost: list[JsonObject] = []

    def lose(params: JsonObject) -> None:
        if params["op"] == op and not lost:
            lost.append(params)
            raise RuntimeRefusal("internal", "lost")

    runtime = await ran(Sandbox(files=dict(FILES)), ArtifactStore(fault=lose))
    assert lost
    assert len(runtime.artifacts.keys[KEY].files) == 3
    assert len(runtime.artifacts.versions) == 1
    assert runtime.claims == []


async def test_a_file_that_changes_while_it_is_read_is_read_again() -> None:
    sandbox = Sandbox(files=dict(FILES))

    def change(path: str, offset: int) -> None:
        if path == "outputs/large.bin" and offset == 4000:  # once, after it was hashed
            sandbox.files[path] = b"\x01" * 6000
            sandbox.after_read = None

    sandbox.after_read = change
    runtime = await ran(sandbox)
    assert runtime.artifacts.keys[KEY].files["large.bin"][1] == b"\x01" * 6000
    assert runtime.claims == []


@pytest.mark.parametrize("grown", [True, False])
async def test_a_file_that_never_rests_is_left_out_and_one_that_grows_is_kept_as_it_was(grown: bool) -> None:
    sandbox = Sandbox(files=dict(FILES))
    rounds = 0

    def change(path: str, offset: int) -> None:
        nonlocal rounds
        rounds += 1
        if path == "outputs/large.bin":
            sandbox.files[path] = sandbox.files[path] + b"more" if grown else bytes([rounds % 256]) * 5000

    sandbox.after_read = change
    runtime = await ran(sandbox)
    if grown:
        assert runtime.artifacts.keys[KEY].files["large.bin"][1].startswith(b"\x00" * 5000)
        assert runtime.claims == []
    else:
        assert stored(runtime) == ["a.md", "b/table.csv"]
        kind, told = claim(runtime)
        assert (kind, told["path"]) == ("artifact.export.skipped", "large.bin")
        assert "it changed while it was read" in told["message"]
    assert runtime.artifacts.uploads == {}


async def test_a_cancel_stops_the_export() -> None:
    runtime = Runtime(script(text("Done.")))
    sandbox = Sandbox(files=dict(FILES), world=World(at=0, hang=True))
    assert sandbox.world is not None
    turn = runtime.turn(sandbox)
    running = asyncio.create_task(turn.run())
    await sandbox.world.reached.wait()
    turn.stop("cancel")
    assert await running == Reported("cancelled")


SAVING = script(
    calls(("save_artifact", {"path": "outputs/large.bin"}), ("read_artifact", {"artifactId": "af_1"})), text("Done.")
)


async def undisturbed(**members: Any) -> Runtime:
    runtime = saving()
    assert await runtime.turn(Sandbox(files=dict(FILES), world=runtime.world), **members).run() == Reported("completed")
    return runtime


def saving() -> Runtime:
    runtime = Runtime(SAVING, artifacts=ArtifactStore(chunk_bytes=2000), limits={"chunkBytes": 2000})
    runtime.artifacts.put(b"there before")
    return runtime


@pytest.mark.parametrize("at", range(90))
async def test_a_turn_cut_off_at_any_point_stores_each_thing_once(at: int) -> None:
    runtime = saving()
    sandbox = Sandbox(files=dict(FILES))
    await until_killed(runtime, sandbox, at)
    if not runtime.outputs:
        runtime.artifacts.uploads.clear()  # they ended with the run
        assert await runtime.turn(sandbox).run() == Reported("completed")
    saved, read = runtime.transcript[2]["results"]
    assert saved["kind"] == "completed" or saved["code"] == "tool.interrupted"
    assert read["kind"] == "completed" or read["code"] == "tool.interrupted"
    assert len(runtime.artifacts.keys[KEY].files) == 3
    by_name = [versions[0].meta["name"] for versions in runtime.artifacts.versions.values()]
    assert sorted(set(by_name)) == sorted(by_name), "something was stored twice"
    assert all(len(versions) == 1 for versions in runtime.artifacts.versions.values())
    assert runtime.claims == []


async def test_the_points_are_fewer_than_are_tried() -> None:
    assert 40 < len((await undisturbed()).world.points) <= 90
