"""read: pages, what is no text, what is no file, and files without measure."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from pod_host.limits import MIB, READ_PAGE_BYTES
from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools.running import Workspace, run_file_tool
from tests.sandbox.tools.conftest import peak_memory


def read(workspace: Workspace, path: str, **members: int) -> str:
    outcome = run_file_tool("read", {"path": path, **members}, workspace)
    assert isinstance(outcome, Completed)
    assert isinstance(outcome.output, str)
    assert outcome.output, "a model must never get an empty text"
    return outcome.output


def refusal(workspace: Workspace, path: str, **members: int) -> Failed:
    outcome = run_file_tool("read", {"path": path, **members}, workspace)
    assert isinstance(outcome, Failed)
    return outcome


def test_lines_are_numbered_and_aligned(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("".join(f"line {n}\n" for n in range(1, 13)))
    assert (
        read(workspace, "f", offset=9, limit=2)
        == " 9\tline 9\n10\tline 10\n… 2 more line(s); read again with offset 11."
    )
    assert read(workspace, "f", offset=11) == "11\tline 11\n12\tline 12"
    assert read(workspace, str(root / "f"), limit=1) == "1\tline 1\n… 11 more line(s); read again with offset 2."


@pytest.mark.parametrize(
    ("content", "shown"), [("a\nb", "1\ta\n2\tb"), ("a\n\n", "1\ta\n2\t"), ("\n", "1\t"), ("a", "1\ta")]
)
def test_the_last_line_end_starts_no_line(workspace: Workspace, root: Path, content: str, shown: str) -> None:
    (root / "f").write_text(content)
    assert read(workspace, "f") == shown


def test_an_empty_file_and_an_offset_past_the_end_are_said(workspace: Workspace, root: Path) -> None:
    (root / "empty").touch()
    (root / "f").write_text("a\nb")
    assert read(workspace, "empty") == f"{root}/empty is empty."
    assert read(workspace, "empty", offset=5) == f"{root}/empty is empty."
    for offset in (3, 4, 10**30):
        assert read(workspace, "f", offset=offset) == f"{root}/f has 2 line(s): there is nothing at offset {offset}."


@pytest.mark.parametrize("path", ["missing", "f/below", "a/../missing", "\ud83d"])
def test_a_missing_file(workspace: Workspace, root: Path, path: str) -> None:
    (root / "f").touch()
    failure = refusal(workspace, path)
    assert failure.code == "sandbox.not_found"
    assert failure.message.startswith("No file at ")


def test_the_message_of_a_missing_file_is_the_normalised_path(workspace: Workspace, root: Path) -> None:
    assert refusal(workspace, "a/../b").message == f"No file at {root}/b"


def test_what_is_not_utf8_shows_as_replacement_characters(workspace: Workspace, root: Path) -> None:
    (root / "latin").write_bytes("café\n".encode("latin-1"))
    (root / "bom").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert read(workspace, "latin") == "1\tcaf\ufffd"
    assert read(workspace, "bom") == "1\t\ufeffa\n2\tb"


def test_a_file_with_a_nul_at_its_start_is_binary(workspace: Workspace, root: Path) -> None:
    (root / "b").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    failure = refusal(workspace, "b")
    assert failure.code == "sandbox.binary"
    assert str(root / "b") in failure.message


def test_a_nul_far_into_a_text_does_not_hide_it(workspace: Workspace, root: Path) -> None:
    (root / "f").write_bytes(b"a\n" * 10_000 + b"x\0y\n")
    assert read(workspace, "f", offset=10_001) == "10001\tx\ufffdy"


def test_special_files_are_refused_at_once(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "directory").mkdir()
    (root / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for path, kind in [
            ("fifo", "a FIFO"),
            ("link", "a FIFO"),
            ("socket", "a socket"),
            ("directory", "a directory"),
            (".", "a directory"),
            ("/dev/zero", "a character device"),
        ]:
            failure = refusal(workspace, path)
            assert failure.code == "sandbox.error"
            assert kind in failure.message


@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "/proc/thread-self/fd/1", "/dev/fd"])
def test_descriptors_of_the_worker_are_refused(workspace: Workspace, path: str) -> None:
    assert refusal(workspace, path).code == "sandbox.error"


def test_a_fifo_is_never_opened(workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open it for reading, even without waiting, lets a waiting writer through to a broken pipe."""
    os.mkfifo(root / "fifo")

    def opened(path: str, *_: object) -> int:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr("os.open", opened)
    assert "a FIFO" in refusal(workspace, "fifo").message


def test_a_file_that_may_not_be_read(ordinary_user: Path, workspace: Workspace) -> None:
    (ordinary_user / "f").touch(mode=0o000)
    failure = refusal(workspace, str(ordinary_user / "f"))
    assert failure == Failed("sandbox.error", f"Could not read {ordinary_user}/f: Permission denied")


def test_a_line_of_5_mb_is_cut_and_the_way_to_its_rest_is_named(workspace: Workspace, root: Path) -> None:
    (root / "it's long").write_bytes(b"first\n" + b"x" * 2000 + b"Y" + b"z" * 5_000_000 + b"\nlast\n")
    with peak_memory(4 * MIB):
        shown = read(workspace, "it's long")
    first, cut, last, note = shown.split("\n")
    assert (first, last) == ("1\tfirst", "3\tlast")
    assert cut == "2\t" + "x" * 2000 + "…"
    assert note.startswith("… line 2 has 5002001 bytes and was cut after 2000 characters; read on with bash: ")
    command = note.partition("bash: ")[2]
    rest = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert rest == "Y" + "z" * 1999 + "\n"


def test_a_cut_never_splits_a_character(workspace: Workspace, root: Path) -> None:
    for text in ("é" * 2001, "😀" * 2001, "a" + "😀" * 2000):
        (root / "f").write_text(text)
        assert read(workspace, "f").split("\n")[0] == "1\t" + text[:2000] + "…"
    (root / "f").write_text("😀" * 2000)
    assert read(workspace, "f") == "1\t" + "😀" * 2000


def test_a_page_ends_early_when_it_is_full(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text(("x" * 1999 + "\n") * 3000)
    shown = read(workspace, "f", limit=3000)
    assert len(shown) < READ_PAGE_BYTES + 10_000
    number = shown.count("\n")
    assert shown.endswith(f"\n… {3000 - number} more line(s); read again with offset {number + 1}.")


def test_a_sparse_file_of_2_gb(workspace: Workspace, root: Path) -> None:
    """Zeros only: binary. Behind a page of text: a bounded answer that says how to read on."""
    for name, start in (("zeros", b""), ("text", b"text\n" * 5000)):
        (root / name).write_bytes(start)
        os.truncate(root / name, 2 * 1024 * MIB)
    with peak_memory(4 * MIB):
        assert refusal(workspace, "zeros").code == "sandbox.binary"
        assert read(workspace, "text", limit=1) == ("1\ttext\n… more than 5000 more line(s); read again with offset 2.")
        cut = read(workspace, "text", offset=5000)
        assert refusal(workspace, "text", offset=9000).code == "sandbox.error"
    assert cut.startswith("5000\ttext\n5001\t" + "\ufffd" * 2000 + "…\n")


def test_a_name_that_is_not_utf8_does_no_harm(workspace: Workspace, root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/n\xff")).write_text("x")
    assert refusal(workspace, "n\udcff").code == "sandbox.not_found"
