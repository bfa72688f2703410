"""Skills: folders that appear whole, that commands read and cannot change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from pod_host.sandbox import Completed, Failed, MountSkill
from tests.sandbox.conftest import Box, alive, completed, eventually

FILES = {"SKILL.md": b"---\nname: pdf\n---\nDo it.\n", "scripts/run.sh": b"echo ran\n", "a/b/empty": b""}


async def mount(box: Box, folder: str = "pdf@abc", files: dict[str, bytes] | None = None) -> Completed | Failed:
    return await box.sandbox.submit(MountSkill(folder, FILES if files is None else files)).outcome()


async def test_a_mounted_skill_is_there_with_all_its_files_to_be_read_and_run(box: Box) -> None:
    place = str(box.config.skills / "pdf@abc")
    assert await mount(box) == Completed({"path": place, "written": True})
    assert (await box.bash(f"cd {place} && find . -type f | sort && sh scripts/run.sh"))["stdout"] == (
        "./SKILL.md\n./a/b/empty\n./scripts/run.sh\nran\n"
    )
    read = await box.submit("read", path=f"{place}/SKILL.md").outcome()
    assert isinstance(read, Completed)
    modes = {os.stat(f"{place}/{path}").st_mode & 0o777 for path in (".", "a/b", "scripts")}
    assert modes == {0o555}
    assert {os.stat(f"{place}/{path}").st_mode & 0o777 for path in FILES} == {0o444}


async def test_a_skill_that_is_there_is_not_written_again(box: Box) -> None:
    await mount(box)
    before = os.stat(box.config.skills / "pdf@abc")
    again = await mount(box, files={"SKILL.md": b"other"})
    assert again == Completed({"path": str(box.config.skills / "pdf@abc"), "written": False})
    assert os.stat(box.config.skills / "pdf@abc").st_ino == before.st_ino
    assert (box.config.skills / "pdf@abc" / "SKILL.md").read_bytes() == FILES["SKILL.md"]


async def test_what_a_mount_that_was_cut_off_left_behind_is_no_skill_and_goes(box: Box) -> None:
    left = box.config.skills / ".pdf@abc.tmp"
    left.mkdir()
    (left / "SKILL.md").write_text("half")
    shutil.chown(left, *([1000, 1000] if os.geteuid() == 0 else [os.geteuid(), os.getegid()]))
    left.chmod(0o555)
    assert isinstance(await mount(box), Completed)
    assert sorted(os.listdir(box.config.skills)) == ["pdf@abc"]


@pytest.mark.parametrize(
    "attempt",
    [
        "echo x >> {skill}/SKILL.md",
        "chmod u+w {skill}/SKILL.md && echo x > {skill}/SKILL.md",
        "chmod u+w {skill} && echo x > {skill}/new",
        "chmod u+w {skill} && rm -f {skill}/SKILL.md",
        "chmod u+w {skill} {skill}/a && mkdir {skill}/a/c",
        "mv {skill} {skill}2",
        "mv {skill} .",
        "rm -rf {skill}",
        "mkdir {skills}/forged@123",
        "ln -s /tmp {skills}/link",
        "ln {skill}/SKILL.md linked && chmod u+w linked && echo x > linked",
        "echo x > own && mv own {skills}/own",
        "ln -s {skill} door && chmod u+w door/SKILL.md && echo x > door/SKILL.md",
        "truncate -s 0 /proc/self/root{skill}/SKILL.md",
    ],
)
async def test_no_command_changes_a_skill(box: Box, attempt: str) -> None:
    if box.sandbox.confinement.abi < 3:
        pytest.skip("the kernel's Landlock knows no truncate")
    await mount(box)
    skill = box.config.skills / "pdf@abc"
    done = await box.bash(attempt.format(skill=skill, skills=box.config.skills))
    assert done["exitCode"] != 0, done
    assert sorted(os.listdir(box.config.skills)) == ["pdf@abc"]
    assert {path: (skill / path).read_bytes() for path in FILES} == FILES
    assert sorted(os.listdir(skill)) == ["SKILL.md", "a", "scripts"]


@pytest.mark.parametrize("tool", ["write", "edit"])
async def test_no_file_tool_changes_a_skill(box: Box, tool: str) -> None:
    await mount(box)
    path = f"{box.config.skills}/pdf@abc/SKILL.md"
    given = {"content": "x"} if tool == "write" else {"old_string": "Do it.", "new_string": "x"}
    outcome = await box.submit(tool, path=path, **given).outcome()
    assert isinstance(outcome, Failed), outcome
    assert (box.config.skills / "pdf@abc" / "SKILL.md").read_bytes() == FILES["SKILL.md"]


async def test_no_file_tool_makes_a_skill(box: Box) -> None:
    for path in ("forged@123/SKILL.md", "file"):
        outcome = await box.submit("write", path=f"{box.config.skills}/{path}", content="x").outcome()
        assert isinstance(outcome, Failed), outcome
    assert os.listdir(box.config.skills) == []


@pytest.mark.parametrize(
    ("folder", "path"),
    [("../x", "a"), ("a/b", "a"), (".a", "a"), ("", "a"), ("x", "../a"), ("x", "/a"), ("x", "a//b"), ("x", "a/./b")],
)
async def test_nothing_is_mounted_outside_its_folder(box: Box, folder: str, path: str) -> None:
    outcome = await mount(box, folder, {path: b"x"})
    assert isinstance(outcome, Failed)
    assert os.listdir(box.config.skills) == []


async def test_a_skill_that_cannot_be_written_whole_leaves_nothing(box: Box) -> None:
    outcome = await mount(box, files={"a": b"1", "a/b": b"2"})
    assert isinstance(outcome, Failed)
    assert os.listdir(box.config.skills) == []


async def test_a_mount_does_not_wait_for_a_command_that_runs(box: Box) -> None:
    running = box.start("until [ -e go ]; do sleep 0.01; done")
    assert isinstance(await mount(box), Completed)
    await box.bash("touch go", session="two")
    await running.outcome()


async def test_commands_of_a_new_zygote_and_a_new_worker_cannot_change_a_skill_either(box: Box) -> None:
    await mount(box)
    report = await box.sandbox.report()
    assert report.zygote is not None
    for pid in (report.zygote, report.pid):
        os.kill(pid, 9)
        await eventually(partial(_has_gone, box, pid))
        done = await box.bash(f"rm -rf {box.config.skills}/pdf@abc; mkdir {box.config.skills}/x")
        assert done["exitCode"] != 0
        assert completed(await mount(box))["written"] is False


async def _has_gone(box: Box, pid: int) -> bool:
    return not alive(pid) and (await box.sandbox.report()).alive


async def test_skills_within_the_workspace_leave_the_workspace_writable(
    make_box: Callable[..., Awaitable[Box]], open_directory: Path
) -> None:
    box = await make_box(skills=open_directory / "workspace" / "skills")
    assert isinstance(await mount(box), Completed)
    assert (await box.bash("touch a && mkdir b && mv a b/"))["exitCode"] == 0
