"""write: exact content, in one step, with what the file was before kept."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools.placing import put
from pod_host.sandbox.tools.running import Workspace, run_file_tool
from pod_host.sandbox.tools.workspace import ToolFailure


def write(workspace: Workspace, path: str, content: str) -> dict[str, object]:
    outcome = run_file_tool("write", {"path": path, "content": content}, workspace)
    assert isinstance(outcome, Completed)
    assert isinstance(outcome.output, dict)
    return outcome.output


def refusal(workspace: Workspace, path: str, content: str = "new") -> Failed:
    outcome = run_file_tool("write", {"path": path, "content": content}, workspace)
    assert isinstance(outcome, Failed)
    return outcome


def no_litter(directory: Path) -> bool:
    return not [name for name in os.listdir(directory) if name.startswith(".pod-host-")]


def test_a_new_file_with_its_parents(workspace: Workspace, root: Path) -> None:
    assert write(workspace, "a/b/c.txt", "é\r\n") == {"path": f"{root}/a/b/c.txt", "bytes": 4}
    assert (root / "a/b/c.txt").read_bytes() == "é\r\n".encode()
    assert stat.S_IMODE((root / "a/b/c.txt").stat().st_mode) == 0o666 & ~current_umask()
    assert os.listdir(root / "a/b") == ["c.txt"]


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("content", ["", "\ufeffbom\r\n", "a\nb", "😀" * 100_000])
def test_the_content_is_exactly_what_was_given(workspace: Workspace, root: Path, content: str) -> None:
    (root / "f").write_bytes(b"\xef\xbb\xbfold\r\nold\r\n")
    assert write(workspace, "f", content)["bytes"] == len(content.encode())
    assert (root / "f").read_bytes() == content.encode()


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o444, 0o600])
def test_the_mode_is_kept(workspace: Workspace, root: Path, mode: int) -> None:
    (root / "f").write_text("old")
    (root / "f").chmod(mode)
    write(workspace, "f", "new")
    assert stat.S_IMODE((root / "f").stat().st_mode) == mode
    assert (root / "f").read_text() == "new"


def test_a_link_is_kept_and_its_target_changed(workspace: Workspace, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/target").write_text("old")
    (root / "d/target").chmod(0o755)
    (root / "link").symlink_to("d/target")
    (root / "dangling").symlink_to("d/new")
    (root / "through").symlink_to("d")
    write(workspace, "link", "new")
    write(workspace, "dangling", "made")
    write(workspace, "through/x", "x")
    assert (root / "link").is_symlink()
    assert (root / "dangling").is_symlink()
    assert (root / "d/target").read_text() == "new"
    assert stat.S_IMODE((root / "d/target").stat().st_mode) == 0o755
    assert (root / "d/new").read_text() == "made"
    assert (root / "d/x").read_text() == "x"


def test_a_reader_keeps_the_old_content(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("old")
    with open(root / "f") as reader:
        write(workspace, "f", "new")
        assert reader.read() == "old"


@pytest.mark.parametrize("content", ["longer than before", "x", ""])
def test_hard_links_stay_one_file(workspace: Workspace, root: Path, content: str) -> None:
    (root / "f").write_text("old old old")
    (root / "other").hardlink_to(root / "f")
    write(workspace, "f", content)
    assert (root / "other").read_text() == content
    assert (root / "f").stat().st_nlink == 2


def test_user_attributes_are_kept(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("old")
    try:
        os.setxattr(root / "f", "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no user attributes")
    write(workspace, "f", "new")
    assert os.getxattr(root / "f", "user.note") == b"kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_root_keeps_the_owner(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("old")
    os.chown(root / "f", 12345, 54321)
    inode = (root / "f").stat().st_ino
    write(workspace, "f", "new")
    status = (root / "f").stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)
    assert status.st_ino != inode, "in one step, by a rename"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_foreign_file_is_written_in_place_where_its_mode_allows(workspace: Workspace, ordinary_user: Path) -> None:
    os.seteuid(0)
    for name, mode in (("open", 0o666), ("shut", 0o644)):
        (ordinary_user / name).write_text("old")
        (ordinary_user / name).chmod(mode)
    os.seteuid(65534)
    write(workspace, str(ordinary_user / "open"), "new")
    assert (ordinary_user / "open").stat().st_uid == 0
    assert (ordinary_user / "open").read_text() == "new"
    failure = refusal(workspace, str(ordinary_user / "shut"))
    assert failure.code == "sandbox.write_failed"
    assert "Permission denied" in failure.message
    assert (ordinary_user / "shut").read_text() == "old"
    assert no_litter(ordinary_user)


def test_a_directory_that_cannot_be_written(workspace: Workspace, ordinary_user: Path) -> None:
    """The file itself can: it is written in place. A new one beside it cannot be made."""
    directory = ordinary_user / "d"
    directory.mkdir()
    (directory / "f").write_text("old")
    directory.chmod(0o555)
    write(workspace, str(directory / "f"), "new")
    assert (directory / "f").read_text() == "new"
    assert refusal(workspace, str(directory / "g")) == Failed(
        "sandbox.write_failed", f"Could not write {directory}/g: Permission denied."
    )
    assert refusal(workspace, str(directory / "e/g")) == Failed(
        "sandbox.write_failed", f"Could not create {directory}/e: Permission denied"
    )


def test_what_is_not_a_file_is_refused(workspace: Workspace, root: Path) -> None:
    (root / "d").mkdir()
    (root / "f").touch()
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    for path, reason in [
        ("d", "a directory"),
        (".", "a directory"),
        ("/", "a directory"),
        ("fifo", "a FIFO"),
        ("/dev/null", "a character device"),
        ("loop", "a symbolic link"),
        ("f/below", "Not a directory"),
        ("x" * 256, "File name too long"),
        ("/proc/self/oom_score_adj", "the kernel's own"),
    ]:
        failure = refusal(workspace, path)
        assert failure.code == "sandbox.write_failed"
        assert reason in failure.message
    assert no_litter(root)


def test_half_of_a_surrogate_pair_is_a_clear_failure(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("old")
    failure = refusal(workspace, "f", "abc\ud83d")
    assert failure.code == "sandbox.not_text"
    assert "\\ud83d" in failure.message
    assert "character 3" in failure.message
    assert (root / "f").read_text() == "old"


@pytest.fixture
def tiny_disk(root: Path) -> Iterator[Path]:
    disk = root / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a file system can be mounted as root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("links", [1, 2])
def test_a_full_disk_leaves_the_old_content_whole(workspace: Workspace, tiny_disk: Path, links: int) -> None:
    (tiny_disk / "f").write_text("old")
    if links == 2:
        (tiny_disk / "other").hardlink_to(tiny_disk / "f")
    failure = refusal(workspace, "disk/f", "x" * 100_000)
    assert failure == Failed(
        "sandbox.write_failed",
        f"Could not write {tiny_disk}/f: No space left on device. Its old content is unchanged.",
    )
    assert (tiny_disk / "f").read_text() == "old"
    assert no_litter(tiny_disk)
    assert refusal(workspace, "disk/new", "x" * 100_000).message.endswith("No space left on device.")
    assert not (tiny_disk / "new").exists()


def test_a_write_that_fails_in_its_middle_leaves_the_old_content_whole(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        failure = refusal(workspace, "f", "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failure.message == f"Could not write {root}/f: File too large. Its old content is unchanged."
    assert (root / "f").read_text() == "old"
    assert no_litter(root)


def test_a_directory_swapped_for_a_link_meanwhile_leads_nowhere(
    workspace: Workspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("untouched")
    (root / "d").mkdir()
    (root / "d/f").write_text("old")

    def swapped_now(size: int) -> str:
        (root / "d").rename(root / "moved")
        (root / "d").symlink_to(outside)
        return "0" * 2 * size

    monkeypatch.setattr("secrets.token_hex", swapped_now)
    write(workspace, "d/f", "new")
    assert os.listdir(outside) == ["f"]
    assert (outside / "f").read_text() == "untouched"
    assert (root / "moved/f").read_text() == "new"


def test_a_directory_swapped_for_a_link_before_it_is_opened_is_not_followed(
    workspace: Workspace, root: Path, tmp_path: Path
) -> None:
    """The path without links was worked out, then the link came: the step through it is refused."""
    (root / "d").symlink_to(tmp_path)
    with pytest.raises(ToolFailure):
        put("d/f", str(root / "d/f"), b"new")
    assert not (tmp_path / "f").exists()


def test_writers_of_one_file_never_mix(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("")
    (root / "link").symlink_to("f")
    (root / "hard").hardlink_to(root / "f")  # in place, where two writers at once would mix
    contents = [letter * 50_000 for letter in "abcdefgh"]
    writers = [
        threading.Thread(target=write, args=(workspace, "f" if number % 2 else "link", content))
        for number, content in enumerate(contents)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (root / "f").read_text() in contents
    assert not workspace.locks._held


def test_a_script_can_run_at_once(workspace: Workspace, root: Path) -> None:
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    for number in range(20):
        write(workspace, "run", f"#!/bin/sh\necho {number}\n")
        assert subprocess.run([root / "run"], capture_output=True, check=True).stdout == f"{number}\n".encode()
    assert shutil.which(str(root / "run")) is not None


def test_a_worker_that_is_killed_in_the_middle_leaves_nothing_half_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        os.close(os.open(root, os.O_WRONLY | os.O_TMPFILE))
    except OSError:
        pytest.skip("this file system has no files without a name")
    (root / "f").write_text("old")
    real = os.write

    def half_and_the_end(descriptor: int, content: bytes) -> int:
        real(descriptor, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    for name in ("f", "new"):
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(os, "write", half_and_the_end)
            put(name, str(root / name), b"new content")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert os.listdir(root) == ["f"]
    assert (root / "f").read_text() == "old"


def test_where_files_cannot_be_without_a_name_they_are_replaced_all_the_same(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nameless, linked in ((errno.EOPNOTSUPP, None), (None, errno.EXDEV)):
        with monkeypatch.context() as patch:
            fail_with(patch, "open", nameless, lambda flags: bool(flags & os.O_DIRECTORY and flags & os.O_WRONLY))
            fail_with(patch, "link", linked, lambda flags: True)
            write(workspace, "f", f"{nameless} {linked}")
        assert (root / "f").read_text() == f"{nameless} {linked}"
        assert no_litter(root)


def fail_with(patch: pytest.MonkeyPatch, name: str, number: int | None, concerns: Callable[[int], bool]) -> None:
    """Calls of ``os.<name>`` whose flags (the second argument, a number) it ``concerns`` fail with the error ``number``."""
    real = getattr(os, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        flags = arguments[1] if isinstance(arguments[1], int) else 0
        if number is not None and concerns(flags):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **named)

    patch.setattr(os, name, failing)
