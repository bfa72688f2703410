"""Skills: the catalogue, the two tools, files that are verified, mounts before sandbox calls (v5, sections 3 and 4)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.errors import RuntimeRefusal, WorkerLost
from pod_host.sandbox.outcomes import Completed, Outcome
from pod_host.turn import FileCache, Reported
from pod_host.turn.skills import Skills
from tests.turn.double import AGENT, Runtime, calls, script, text
from tests.turn.json_values import crossed, values
from tests.turn.sandbox_double import Sandbox

MAIN = b"---\nname: pdf\ndescription: Reads PDFs.\n---\n# PDF\nRun scripts/read.py.\n"
FILES = {"SKILL.md": MAIN, "scripts/read.py": b"print('read')\n", "logo.png": b"\x89PNG\xff"}
FOLDER = "pdf@f985f222e563"


def named(files: dict[str, bytes]) -> dict[str, str]:
    return {path: f"sha256:{hashlib.sha256(content).hexdigest()}" for path, content in files.items()}


def stored(*several: dict[str, bytes]) -> dict[str, bytes]:
    return {named(files)[path]: content for files in several for path, content in files.items()}


def manifest(*skills: JsonObject) -> JsonObject:
    pdf = {"name": "pdf", "description": "Reads\nPDFs.", "files": named(FILES)}
    return {"id": AGENT, "instructions": "Be exact.", "skills": list(skills) or [pdf]}


def with_skills(*answers: Json, **members: Any) -> Runtime:
    return Runtime(script(*answers), **{"manifest": manifest(), "files": stored(FILES), **members})


async def results(runtime: Runtime, sandbox: Sandbox | None, **members: Any) -> list[JsonObject]:
    assert await runtime.turn(sandbox, **members).run() == Reported("completed")
    return [result for entry in runtime.transcript for result in entry.get("results", [])]


# --- The catalogue -----------------------------------------------------------------------------------------------------


async def test_the_prompt_lists_each_skill_with_its_folder() -> None:
    runtime = with_skills(text("Hi"))
    prompts: list[str] = []
    runtime.at_gate = lambda call: prompts.append(call["prompt"][0]["content"][0]["text"])
    await results(runtime, Sandbox())
    assert f"- pdf: Reads PDFs. (/skills/{FOLDER})" in prompts[0]
    assert "read-only" in prompts[0]


async def test_without_a_sandbox_skills_have_no_folder_and_are_read_by_their_tools() -> None:
    runtime = with_skills(calls(("load_skill", {"name": "pdf"})), text("Hi"))
    prompts: list[str] = []
    runtime.at_gate = lambda call: prompts.append(call["prompt"][0]["content"][0]["text"])
    (loaded,) = await results(runtime, None)
    assert "/skills" not in prompts[0]
    assert loaded["output"] == {
        "name": "pdf",
        "content": "# PDF\nRun scripts/read.py.\n",
        "resources": ["logo.png", "scripts/read.py"],
    }


@given(st.integers(0, 9))
def test_a_folder_is_named_by_the_files_whatever_their_order(seed: int) -> None:
    skills = Skills.of(crossed(manifest(), seed), "/skills")
    assert [skill.folder for skill in skills] == [FOLDER]


def test_another_version_is_another_folder() -> None:
    changed = {"name": "pdf", "description": "", "files": named({**FILES, "SKILL.md": b"new"})}
    (skill,) = Skills.of(manifest(changed), "/skills")
    assert skill.folder != FOLDER
    assert skill.folder.startswith("pdf@")


def test_skills_by_name_are_read_as_a_list_is_with_what_a_plugin_brought() -> None:
    entry = {"description": "d", "files": named(FILES), "plugin": {"name": "docs"}}
    skills = Skills.of({"skills": {"b": entry, "a": entry}}, None)
    assert skills.names == ["a", "b"]


@pytest.mark.parametrize(
    "fault",
    [
        {"name": "a/b"},
        {"name": None},
        {"files": {}},
        {"files": {"README.md": "sha256:" + "0" * 64}},
        {"files": {"SKILL.md": "0" * 64}},
        {"files": {"SKILL.md": "sha256:" + "0" * 64, "../x": "sha256:" + "0" * 64}},
        {"files": {"SKILL.md": "sha256:" + "0" * 64, "/x": "sha256:" + "0" * 64}},
        {"files": {"SKILL.md": "sha256:" + "0" * 64, "a\\b": "sha256:" + "0" * 64}},
        {"files": {"SKILL.md": "sha256:" + "0" * 64, **{f"{n}": "sha256:" + "0" * 64 for n in range(500)}}},
        {"files": "none"},
    ],
)
def test_a_skill_that_cannot_be_read_is_left_out_and_the_log_says_so(
    fault: JsonObject, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"name": "good", "description": "", "files": named(FILES)}
    skills = Skills.of(manifest({"name": "bad", "files": named(FILES), **fault}, good, good), None)
    assert skills.names == ["good"]
    assert [record.event for record in caplog.records] == ["skill.left_out"] * 2  # type: ignore[attr-defined]


@given(values)
def test_no_manifest_breaks_the_reading(value: Json) -> None:
    Skills.of({"skills": value}, "/skills").section()


# --- The tools ---------------------------------------------------------------------------------------------------------


async def test_a_skill_is_loaded_without_its_head_and_is_in_the_sandbox_then() -> None:
    runtime = with_skills(calls(("load_skill", {"name": "pdf"})), text("Hi"))
    sandbox = Sandbox()
    (loaded,) = await results(runtime, sandbox)
    assert loaded["output"]["sandboxPath"] == f"/skills/{FOLDER}"
    assert sandbox.skills == {FOLDER: FILES}
    intent = runtime.asked("effect.intent")[1]["effect"]
    assert (intent["target"], intent["skill"]) == ({"kind": "harness"}, "pdf")


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "said"),
    [
        ("load_skill", {"name": "doc"}, "skill.unknown", "There are: pdf"),
        ("load_skill", {}, "tool.invalid-input", "'name' is a required property"),
        ("load_skill", {"name": 7}, "tool.invalid-input", "name: 7 is not of type 'string'"),
        ("read_skill_resource", {"name": "doc", "path": "a"}, "skill.unknown", "There are: pdf"),
        ("read_skill_resource", {"name": "pdf", "path": "a"}, "skill.unknown_resource", "scripts/read.py"),
        ("read_skill_resource", {"name": "pdf", "path": "logo.png"}, "skill.binary_resource", f"/{FOLDER}/logo.png"),
    ],
)
async def test_what_cannot_be_read_is_told_to_the_model(tool: str, arguments: JsonObject, code: str, said: str) -> None:
    runtime = with_skills(calls((tool, arguments)), text("Hi"))
    (result,) = await results(runtime, Sandbox())
    assert result["code"] == code
    assert said in result["message"]
    if code == "skill.unknown":
        assert "skill" not in runtime.asked("effect.intent")[1]["effect"]


async def test_a_text_resource_is_read() -> None:
    runtime = with_skills(calls(("read_skill_resource", {"name": "pdf", "path": "scripts/read.py"})), text("Hi"))
    (result,) = await results(runtime, Sandbox())
    assert result["output"] == {"name": "pdf", "path": "scripts/read.py", "content": "print('read')\n"}


# --- Files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, len(MAIN), len(MAIN) + 1, 16 * 1024 * 1024])
async def test_files_are_read_in_ranges_within_the_limit_and_once(chunk: int) -> None:
    runtime = with_skills(calls(("load_skill", {"name": "pdf"})), text("Hi"), limits={"chunkBytes": chunk})
    files, sandbox = FileCache(), Sandbox()
    await results(runtime, sandbox, files=files)
    assert sandbox.skills == {FOLDER: FILES}
    asked = runtime.asked("definition.file")
    assert len(asked) == sum(-(-len(content) // chunk) for content in FILES.values())
    runtime.requests.clear()
    runtime.transcript.clear()
    await results(runtime, Sandbox(), files=files, turn_id="turn_2")
    assert runtime.asked("definition.file") == []


async def test_a_file_that_comes_whole_whatever_range_was_asked_for_is_taken() -> None:
    runtime = with_skills(calls(("load_skill", {"name": "pdf"})), text("Hi"), limits={"chunkBytes": 10})
    served = runtime._file

    def whole(params: JsonObject) -> JsonObject:
        runtime.limits = {}
        return served({**params, "length": 1 << 20, "offset": 0})

    runtime._file = whole  # type: ignore[method-assign]
    sandbox = Sandbox()
    await results(runtime, sandbox)
    assert sandbox.skills == {FOLDER: FILES}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"base64": "AAAA", "eof": True}, "do not match"),
        ({"base64": "AAAA", "size": 3}, "do not match"),
        ({"base64": ""}, "do not match"),
        ({"base64": "AAAA" * 100_000}, "larger than"),
        ({"base64": "*"}, "not base64"),
        ({}, "no base64"),
        (RuntimeRefusal("unavailable_store", "gone"), "gone"),
    ],
)
async def test_bytes_that_are_not_what_the_hash_says_are_mounted_nowhere_and_it_is_said(
    answer: JsonObject | Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = with_skills(
        calls(("load_skill", {"name": "pdf"}), ("bash", {"command": f"sh /skills/{FOLDER}/x"})), text("Hi")
    )

    def file(params: JsonObject) -> JsonObject:
        if isinstance(answer, Exception):
            raise answer
        return answer

    runtime._file = file  # type: ignore[method-assign]
    sandbox = Sandbox()
    loaded, ran = await results(runtime, sandbox)
    assert (loaded["code"], ran["kind"]) == ("skill.unavailable", "completed")
    assert said in loaded["message"]
    assert sandbox.skills == {}
    assert "skill.not_mounted" in [record.event for record in caplog.records]  # type: ignore[attr-defined]


async def test_one_bad_file_leaves_the_skill_readable_and_says_why_it_is_not_mounted() -> None:
    runtime = with_skills(calls(("load_skill", {"name": "pdf"})), text("Hi"))
    runtime.files[named(FILES)["logo.png"]] = b"forged"
    sandbox = Sandbox()
    (loaded,) = await results(runtime, sandbox)
    assert loaded["output"]["content"].startswith("# PDF")
    assert "sandboxPath" not in loaded["output"]
    assert "logo.png of the skill pdf cannot be had: its bytes do not match" in loaded["output"]["note"]
    assert sandbox.skills == {}


async def test_a_good_skill_is_mounted_beside_a_bad_one() -> None:
    other = {"SKILL.md": b"# Other"}
    both = manifest(
        {"name": "bad", "description": "", "files": named(FILES)},
        {"name": "good", "description": "", "files": named(other)},
    )
    runtime = with_skills(calls(("bash", {"command": "ls"})), text("Hi"), manifest=both, files=stored(FILES, other))
    runtime.files[named(FILES)["logo.png"]] = b"forged"
    sandbox = Sandbox()
    await results(runtime, sandbox)
    assert list(sandbox.skills.values()) == [other]


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = FileCache(10)
    cache.put("a", b"12345")
    cache.put("b", b"12345")
    assert cache.get("a") == b"12345"
    cache.put("c", b"1")
    assert (cache.get("b"), cache.get("a"), cache.get("c"), cache.size) == (None, b"12345", b"1", 6)
    cache.put("large", b"x" * 11)
    assert cache.get("large") is None


# --- Mounts ------------------------------------------------------------------------------------------------------------


async def test_skills_are_mounted_before_the_first_sandbox_call_and_once() -> None:
    sandbox = Sandbox()
    mounted: list[int] = []

    def work(tool: str, arguments: JsonObject) -> Outcome:
        mounted.append(len(sandbox.skills))
        return Completed("")

    sandbox.work = work
    runtime = with_skills(*[calls(("bash", {"command": "x"}), ("read", {"path": "a"}))] * 2, text("Hi"))
    await results(runtime, sandbox)
    assert mounted == [1] * 4
    assert len(runtime.asked("definition.file")) == len(FILES)


async def test_a_new_pod_is_given_the_skills_again() -> None:
    runtime, files = with_skills(*[calls(("bash", {"command": "x"}))] * 2, text("Hi")), FileCache()
    first, second = Sandbox(), Sandbox()
    await results(runtime, first, files=files)
    runtime.transcript.clear()
    await results(runtime, second, files=files, turn_id="turn_2")
    assert first.skills == second.skills == {FOLDER: FILES}


async def test_no_sandbox_call_means_no_mount_and_no_file() -> None:
    runtime, sandbox = with_skills(text("Hi")), Sandbox()
    await results(runtime, sandbox)
    assert (sandbox.skills, runtime.asked("definition.file")) == ({}, [])


async def test_a_sandbox_that_cannot_take_a_skill_runs_the_call_all_the_same() -> None:
    runtime = with_skills(calls(("bash", {"command": "x"}), ("load_skill", {"name": "pdf"})), text("Hi"))
    sandbox = Sandbox(unmountable="the disk is full")
    ran, loaded = await results(runtime, sandbox)
    assert ran["kind"] == "completed"
    assert loaded["output"]["note"].endswith("the disk is full")


async def test_a_worker_that_dies_while_it_mounts_is_asked_again_at_the_next_call() -> None:
    class Dying(Sandbox):
        tries = 0

        async def mount_skill(self, folder: str, files: Any) -> None:
            self.tries += 1
            if self.tries == 1:
                raise WorkerLost("it died")
            await super().mount_skill(folder, files)

    runtime, sandbox = with_skills(*[calls(("bash", {"command": "x"}))] * 2, text("Hi")), Dying()
    await results(runtime, sandbox)
    assert (sandbox.tries, sandbox.skills) == (2, {FOLDER: FILES})


async def test_files_that_are_read_beside_one_another_come_one_at_a_time_and_each_once() -> None:
    asked, most = 0, 0

    async def slow() -> None:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        for _ in range(10):
            await asyncio.sleep(0)
        asked -= 1

    answer = calls(*[("read_skill_resource", {"name": "pdf", "path": path}) for path in [*FILES, *FILES]])
    runtime = with_skills(answer, text("Hi"))
    runtime.intercept = lambda method, params: slow() if method == "definition.file" else None
    await results(runtime, Sandbox())
    assert (most, len(runtime.asked("definition.file"))) == (1, len(FILES))


@pytest.mark.parametrize("code", ["unavailable", "internal"])
async def test_a_store_that_is_out_for_one_call_has_the_skill_for_the_next(code: str) -> None:
    out = 2  # it is asked once more before a call does without

    def refuse(method: str, params: JsonObject) -> None:
        nonlocal out
        if method == "definition.file" and out:
            out -= 1
            raise RuntimeRefusal(code, "the store is out")

    runtime = with_skills(*[calls(("bash", {"command": "x"}))] * 2, text("Hi"), intercept=refuse)
    sandbox, mounted = Sandbox(), []

    def work(tool: str, arguments: JsonObject) -> Outcome:
        mounted.append(len(sandbox.skills))
        return Completed("")

    sandbox.work = work
    await results(runtime, sandbox)
    assert mounted == [0, 1]


async def test_calls_keep_their_order_while_a_skill_is_mounted() -> None:
    sandbox = Sandbox()
    answer = calls(*[("bash", {"command": str(n)}) for n in range(8)])
    await results(with_skills(answer, text("Hi")), sandbox)
    assert [arguments["command"] for _, arguments in sandbox.started] == [str(n) for n in range(8)]


async def test_a_stop_while_a_skill_is_fetched_ends_the_turn() -> None:
    fetching = asyncio.Event()

    def slow(method: str, params: JsonObject) -> object:
        if method != "definition.file":
            return None
        fetching.set()
        return asyncio.Event().wait()

    runtime = with_skills(calls(("bash", {"command": "x"})), text("Hi"), intercept=slow)
    sandbox = Sandbox()
    turn = runtime.turn(sandbox)
    running = asyncio.create_task(turn.run())
    await fetching.wait()
    turn.stop("cancel")
    assert await running == Reported("cancelled")
    assert sandbox.started == []


@pytest.mark.parametrize(
    ("tool", "arguments", "skill"),
    [
        ("bash", {"command": f"python3 /skills/{FOLDER}/scripts/read.py a.pdf"}, "pdf"),
        ("read", {"path": f"/skills/{FOLDER}/SKILL.md"}, "pdf"),
        ("glob", {"pattern": "*", "path": f"/skills/{FOLDER}"}, "pdf"),
        ("bash", {"command": "ls /skills/pdf@000000000000"}, None),
        ("bash", {"command": "ls /skills"}, None),
    ],
)
async def test_a_sandbox_call_that_names_a_skills_folder_carries_the_skill(
    tool: str, arguments: JsonObject, skill: str | None
) -> None:
    runtime = with_skills(calls((tool, arguments)), text("Hi"))
    await results(runtime, Sandbox())
    assert runtime.asked("effect.intent")[1]["effect"].get("skill") == skill


def test_one_range_is_no_more_than_the_loop_does_in_one_go() -> None:
    assert limits.SKILL_RANGE_BYTES * 4 // 3 <= limits.LOOP_PIECE_BYTES


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pod_host.turn")
