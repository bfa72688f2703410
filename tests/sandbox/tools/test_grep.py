"""grep: what it prints, what it reads, and how it stays bounded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pod_host.limits import MIB
from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools.running import Workspace, run_file_tool
from tests.sandbox.tools.conftest import PopenSearch, peak_memory


def grep(workspace: Workspace, pattern: str, **members: object) -> str:
    outcome = run_file_tool("grep", {"pattern": pattern, **members}, workspace)
    assert isinstance(outcome, Completed), outcome
    assert isinstance(outcome.output, str)
    assert outcome.output, "a model must never get an empty text"
    return outcome.output


def refusal(workspace: Workspace, pattern: str, **members: object) -> Failed:
    outcome = run_file_tool("grep", {"pattern": pattern, **members}, workspace)
    assert isinstance(outcome, Failed), outcome
    return outcome


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


TREE = {
    "b.txt": "hello\n",
    "a.txt": "no\nhello\n",
    "d/c:1.py": "Hello: hello\n",
    ".hidden/e.txt": "hello\n",
    "ignored.log": "hello\n",
    ".gitignore": "*.log\n",
    ".git/config": "hello\n",
    "d/.git/HEAD": "hello\n",
}


def test_paths_print_as_grep_prints_them(workspace: Workspace, root: Path) -> None:
    lay_out(root, TREE)
    assert grep(workspace, "hello").split("\n") == [
        "./.hidden/e.txt:1:hello",
        "./a.txt:2:hello",
        "./b.txt:1:hello",
        "./d/c:1.py:1:Hello: hello",
        "./ignored.log:1:hello",
    ]
    assert grep(workspace, "hello", path="a.txt") == "2:hello"
    assert grep(workspace, "hello", path="d") == "d/c:1.py:1:Hello: hello"
    assert grep(workspace, "hello", path=str(root / "d")) == f"{root}/d/c:1.py:1:Hello: hello"


def test_git_is_searched_when_it_is_named(workspace: Workspace, root: Path) -> None:
    lay_out(root, TREE)
    assert grep(workspace, "hello", path=".git") == ".git/config:1:hello"
    assert grep(workspace, "hello", path="d/.git/HEAD") == "1:hello"
    assert grep(workspace, "hello", glob="**/.git/*") == "./.git/config:1:hello\n./d/.git/HEAD:1:hello"


@pytest.mark.parametrize("glob", ["*.txt", "*.{txt,md}", "[ab].txt", "{a,b}.txt"])
def test_glob_narrows_by_name(workspace: Workspace, root: Path, glob: str) -> None:
    lay_out(root, {"a.txt": "hello", "d/b.txt": "hello", "c.py": "hello"})
    assert grep(workspace, "hello", glob=glob) == "./a.txt:1:hello\n./d/b.txt:1:hello"


def test_case(workspace: Workspace, root: Path) -> None:
    lay_out(root, {"a": "HELLO ÉÀ\n"})
    assert grep(workspace, "hello éà") == "No matches."
    assert grep(workspace, "hello éà", ignore_case=True) == "./a:1:HELLO ÉÀ"


def test_lines_of_a_pattern_are_alternatives(workspace: Workspace, root: Path) -> None:
    lay_out(root, {"a": "one\ntwo\nthree\n"})
    assert grep(workspace, "one\nthree", path="a") == "1:one\n3:three"


def test_a_pattern_is_never_an_option(workspace: Workspace, root: Path) -> None:
    lay_out(root, {"a": "--files\n", "-": "-v\n"})
    assert grep(workspace, "--files") == "./a:1:--files"
    assert grep(workspace, "-v", path="-") == "1:-v"


def test_crlf_lines_end_where_they_end(workspace: Workspace, root: Path) -> None:
    (root / "a").write_bytes(b"hello\r\nx\r\n")
    assert grep(workspace, "hello$", path="a") == "1:hello"
    assert grep(workspace, r"o\r$", path="a") == "1:hello"
    assert grep(workspace, "\r", path="a") == "1:hello\n2:x"


def test_more_than_the_most_is_said_and_the_search_ends_early(
    workspace: Workspace, root: Path, search: PopenSearch
) -> None:
    lay_out(root, {f"f{number:04}": "hello\n" * 1000 for number in range(500)})
    shown = grep(workspace, "hello", max_results=2)
    assert shown == "./f0000:1:hello\n./f0000:2:hello\n… more matches omitted; narrow the search."
    assert search.runs[0].process.poll() is not None
    assert len(grep(workspace, "hello").split("\n")) == 201
    assert grep(workspace, "hello", path="f0000", max_results=1000).count("\n") == 999


def test_a_bad_pattern_is_a_clear_failure(workspace: Workspace, root: Path) -> None:
    lay_out(root, {"a": "hello"})
    for pattern, reason in [("(", "unclosed group"), ("a(?=b)", "look-around"), (r"(a)\1", "backreferences")]:
        failure = refusal(workspace, pattern)
        assert failure.code == "sandbox.grep_failed"
        assert reason in failure.message
        assert "--pcre2" not in failure.message
        assert not failure.message.startswith("rg:")


def test_a_target_that_is_none_is_a_clear_failure(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "dangling").symlink_to("nowhere")
    assert refusal(workspace, "x", path="gone") == Failed("sandbox.grep_failed", "gone: No such file or directory")
    assert refusal(workspace, "x", path="dangling").message == "dangling: No such file or directory"
    assert "a FIFO" in refusal(workspace, "x", path="fifo").message
    assert "a character device" in refusal(workspace, "x", path="/dev/zero").message


def test_a_tree_with_a_fifo_a_dangling_link_and_a_loop_ends(workspace: Workspace, root: Path) -> None:
    lay_out(root, {"d/a": "hello"})
    os.mkfifo(root / "d/fifo")
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to(".")
    assert grep(workspace, "hello") == "./d/a:1:hello"
    assert grep(workspace, "nothing like it") == "No matches."


def test_real_matches_stay_beside_a_file_that_cannot_be_read(workspace: Workspace, ordinary_user: Path) -> None:
    lay_out(ordinary_user, {"a": "hello", "b": "hello"})
    (ordinary_user / "b").chmod(0o000)
    there = Workspace(str(ordinary_user), workspace.run_search, workspace.ripgrep)
    matched, note = grep(there, "hello").split("\n")
    assert matched == "./a:1:hello"
    assert note.startswith("… not everything could be searched: ./b: Permission denied")
    assert "./b: Permission denied" in refusal(there, "nothing like it").message


def test_binary_files_are_passed_over(workspace: Workspace, root: Path) -> None:
    (root / "b").write_bytes(b"\0\1hello\n")
    (root / "late").write_bytes(b"hello\n" + b"x\n" * 100_000 + b"\0")
    match, note = grep(workspace, "hello").split("\n")
    assert match == "./late:1:hello"
    assert note.startswith("./late: ")
    assert "binary file" in note
    assert "binary file matches" in grep(workspace, "hello", path="b")


def test_what_is_not_utf8_is_found_and_shown(workspace: Workspace, root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/n\xff")).write_bytes("hello caf\xe9\n".encode("latin-1"))
    assert grep(workspace, "hello") == "./n\ufffd:1:hello caf\ufffd"


def test_a_long_line_is_cut_in_bounded_memory(workspace: Workspace, root: Path) -> None:
    with open(root / "long", "w") as file:
        for _ in range(20):
            file.write("hello" + "é" * 1_000_000 + "\n")
    with peak_memory(2 * MIB):
        lines = grep(workspace, "hello").split("\n")
    assert len(lines) == 20
    assert all(len(line) == 2001 and line.endswith("é…") for line in lines)


def test_a_search_that_takes_too_long_says_so(workspace: Workspace, root: Path, search: PopenSearch) -> None:
    """Its time is cut to nothing here: it is killed before it finds anything."""
    search.seconds = 1e-9
    for number in range(2000):
        (root / f"f{number}").touch()
    assert refusal(workspace, "hello").message == "Nothing was found within 60 s; narrow the search."


def test_a_pattern_that_cannot_be_an_argument(workspace: Workspace) -> None:
    assert refusal(workspace, "a\0b").code == "sandbox.grep_failed"
    assert refusal(workspace, "\ud83d").code == "sandbox.not_text"
    assert refusal(workspace, "x" * 200_000).message == "The search could not be started: Argument list too long"


def test_a_pattern_that_hangs_a_backtracking_matcher(workspace: Workspace, root: Path) -> None:
    lay_out(root, {"a": "a" * 50_000 + "!\n"})
    assert grep(workspace, "(a+)+$") == "No matches."


@pytest.mark.skipif(shutil.which("grep") is None, reason="there is no grep either")
def test_without_ripgrep_grep_does_it(without_ripgrep: Workspace, root: Path) -> None:
    lay_out(root, TREE)
    assert sorted(grep(without_ripgrep, "hello").split("\n")) == [
        "./.hidden/e.txt:1:hello",
        "./a.txt:2:hello",
        "./b.txt:1:hello",
        "./d/c:1.py:1:Hello: hello",
        "./ignored.log:1:hello",
    ]
    assert grep(without_ripgrep, "HELLO", path="a.txt", ignore_case=True) == "2:hello"
    assert grep(without_ripgrep, "hello", glob="*.py") == "./d/c:1.py:1:Hello: hello"
    assert grep(without_ripgrep, "none such") == "No matches."
    assert refusal(without_ripgrep, "(").code == "sandbox.grep_failed"


def test_without_any_search_program(without_ripgrep: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert refusal(without_ripgrep, "x").message == "This image has neither ripgrep nor grep."
