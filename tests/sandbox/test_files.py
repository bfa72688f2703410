"""The file operations that are no tools."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pod_host.sandbox import AppendLog, Completed, Failed, ListFolder, PutFile, ReadBytes
from tests.sandbox.conftest import Box


@pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/out", "", ".", "a\0b", "{hidden}/out", "link/out"])
async def test_nothing_is_put_outside_the_workspace(box: Box, path: str) -> None:
    await box.bash(f"ln -s {box.root} link")
    outcome = await box.sandbox.submit(PutFile("one", path.format(hidden=box.hidden), b"x")).outcome()
    assert isinstance(outcome, Failed)
    assert outcome.code == "sandbox.outside_workspace"
    assert not (box.root / "out").exists()


async def test_a_path_that_is_no_text_leaves_nothing_behind(box: Box) -> None:
    assert isinstance(await box.sandbox.submit(PutFile("one", "\ud83d", b"x")).outcome(), Failed)
    assert (await box.bash("ls -A"))["stdout"] == ""


async def test_a_put_file_has_its_mode_and_the_commands_owner(box: Box) -> None:
    for name, mode, expected in (("a", None, 0o644), ("b", 0o755, 0o755), ("c", 0o600, 0o600)):
        await box.sandbox.submit(PutFile("one", str(box.workspace / name), b"x", mode)).outcome()
        status = (box.workspace / name).stat()
        assert status.st_mode & 0o7777 == expected
        assert status.st_uid == (await box.sandbox.report()).uid


async def test_a_put_file_replaces_whole_and_leaves_nothing_beside(box: Box) -> None:
    await box.bash("echo old > file; ln file kept")
    await box.sandbox.submit(PutFile("one", "file", b"new\n")).outcome()
    assert (await box.bash("cat file kept; ls -A"))["stdout"] == "new\nold\nfile\nkept\n"


async def test_a_file_in_the_way_of_a_directory_is_a_clear_failure(box: Box) -> None:
    await box.bash("touch file; mkdir directory")
    for path in ("file/below", "directory"):
        outcome = await box.sandbox.submit(PutFile("one", path, b"")).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.code == "sandbox.write_failed"
    assert (await box.bash("ls -A"))["stdout"] == "directory\nfile\n"


async def test_bulk_passes_both_ways_while_the_loop_goes_on(box: Box) -> None:
    content = os.urandom(1 << 20) * 64
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(take_turns())
    put = await box.sandbox.submit(PutFile("one", "bulk", content)).outcome()
    assert put == Completed({"path": str(box.workspace / "bulk"), "bytes": len(content)})
    assert turns > 100  # it went piece by piece
    turns = 0
    got = await box.sandbox.submit(ReadBytes("one", "bulk", 0, len(content))).outcome()
    assert turns > 100
    turning.cancel()
    assert isinstance(got, Completed)
    assert got.output["bytes"] == content


async def test_a_tool_input_of_many_megabytes_arrives_whole(box: Box) -> None:
    text = 'é\\"\n' * 3_000_000
    outcome = await box.submit("write", path="large", content=text).outcome()
    assert outcome == Completed({"path": str(box.workspace / "large"), "bytes": len(text.encode())})
    assert (box.workspace / "large").read_text() == text


@pytest.mark.parametrize(
    "make", ["mkfifo special", "mkdir special", "ln -s /dev/zero special", "ln -s /dev/tty special"]
)
async def test_what_is_no_regular_file_is_refused_at_once(box: Box, make: str) -> None:
    await box.bash(make)
    outcome = await box.sandbox.submit(ReadBytes("one", "special", 0, 10)).outcome()
    assert isinstance(outcome, Failed)


async def test_bytes_beyond_the_end_are_none(box: Box) -> None:
    await box.bash("printf abc > f")
    assert await box.sandbox.submit(ReadBytes("one", "f", 10, 10)).outcome() == Completed({"bytes": b"", "size": 3})
    assert await box.sandbox.submit(ReadBytes("one", "f", 1, 0)).outcome() == Completed({"bytes": b"", "size": 3})
    missing = await box.sandbox.submit(ReadBytes("one", "none", 0, 1)).outcome()
    assert isinstance(missing, Failed)
    assert missing.code == "sandbox.not_found"


async def listed(box: Box, path: str, most: int = 100) -> tuple[list[tuple[str, int | None]], bool]:
    outcome = await box.sandbox.submit(ListFolder("one", path, most)).outcome()
    assert isinstance(outcome, Completed)
    return [(name, size) for name, size in json.loads(outcome.output["bytes"])], outcome.output["more"]


async def test_a_folder_is_listed_by_path_without_links_and_special_files(box: Box) -> None:
    await box.bash(
        "mkdir -p out/b/c out/empty; printf 1 > out/z; printf 22 > out/b/c/x; printf 333 > out/b.txt;"
        " ln -s /etc/passwd out/link; ln -s /etc out/etc; ln -s . out/loop; mkfifo out/fifo; touch 'out/ö\n'"
    )
    files = [("b.txt", 3), ("b/c/x", 2), ("z", 1), ("ö\n", 0)]
    assert await listed(box, "out") == (files, False)
    assert await listed(box, str(box.workspace / "out")) == (files, False)


async def test_what_is_no_folder_has_no_files(box: Box) -> None:
    await box.bash("mkdir there; touch there/f file; ln -s there link")
    for path in ("none", "file", "file/below", "link"):
        assert await listed(box, path) == ([], False)


async def test_a_listing_ends_at_its_most(box: Box) -> None:
    await box.bash("mkdir few many deep; touch few/{1..3}; touch many/{1..4}; mkdir deep/{1..41}")
    assert await listed(box, "few", 3) == ([("1", 0), ("2", 0), ("3", 0)], False)
    files, more = await listed(box, "many", 3)
    assert (len(files), more) == (3, True)
    assert await listed(box, "deep", 3) == ([], True)


async def test_a_name_that_is_no_unicode_is_listed_and_read(box: Box) -> None:
    await box.bash("mkdir out; printf x > $'out/\\xff'")
    ((name, size),), _ = await listed(box, "out")
    assert (os.fsencode(name), size) == (b"\xff", 1)
    assert await box.sandbox.submit(ReadBytes("one", f"out/{name}", 0, 9)).outcome() == Completed(
        {"bytes": b"x", "size": 1}
    )


async def test_a_folder_that_may_not_be_read_is_a_clear_failure_and_one_below_it_is_named(box: Box) -> None:
    await box.bash(
        "mkdir -p out/shut out/half; touch out/a out/shut/f out/half/f; chmod 0 out/shut; chmod 444 out/half"
    )
    inner = await listed(box, "out")
    await box.bash("chmod 0 out")
    outer = await box.sandbox.submit(ListFolder("one", "out", 9)).outcome()
    await box.bash("chmod 755 out; chmod 755 out/*")
    assert inner == ([("a", 0), ("half/f", None), ("shut/", None)], False)
    assert isinstance(outer, Failed)
    assert "Permission denied" in outer.message


async def test_a_log_that_a_command_replaced_by_a_trap_holds_nobody_up(box: Box) -> None:
    await box.bash("mkfifo $HOME/setup.log; ln -s /etc/passwd $HOME/other.log")
    for name in ("setup.log", "other.log", "../token"):
        assert isinstance(await box.sandbox.submit(AppendLog("one", name, "x\n")).outcome(), Failed)


async def test_what_needs_a_codec_works_though_the_interpreters_own_files_are_out_of_reach(box: Box) -> None:
    await box.bash("touch b.txt é.txt a.txt")
    found = Completed("\n".join(f"{box.workspace}/{name}.txt" for name in ("a", "b", "é")))
    assert await box.submit("glob", pattern="*.txt").outcome() == found


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root makes a directory that the commands' user may pass but not list"
)
async def test_a_workspace_below_a_directory_that_may_not_be_listed_is_written(
    make_box: Callable[..., Any], open_directory: Path
) -> None:
    os.chmod(open_directory, 0o711)
    box = await make_box()
    output = await box.bash("echo made > by-command && mkdir sub && touch sub/f && mv sub moved && ls && touch ~/kept")
    assert (output["exitCode"], output["stdout"]) == (0, "by-command\nmoved\n")
    assert isinstance(await box.submit("write", path="by-tool", content="x").outcome(), Completed)
