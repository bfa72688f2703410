"""glob: what it finds, how it is sorted, and how it stays bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools import glob as glob_tool
from pod_host.sandbox.tools.running import Workspace, run_file_tool
from tests.sandbox.tools.conftest import PopenSearch


def glob(workspace: Workspace, pattern: str, **members: str) -> list[str]:
    outcome = run_file_tool("glob", {"pattern": pattern, **members}, workspace)
    assert isinstance(outcome, Completed), outcome
    assert isinstance(outcome.output, str)
    return outcome.output.split("\n")


def refusal(workspace: Workspace, pattern: str, **members: str) -> Failed:
    outcome = run_file_tool("glob", {"pattern": pattern, **members}, workspace)
    assert isinstance(outcome, Failed), outcome
    return outcome


@pytest.fixture(params=["ripgrep", "own walk"])
def either(request: pytest.FixtureRequest, workspace: Workspace, without_ripgrep: Workspace) -> Workspace:
    """Both walks must find the same."""
    return workspace if request.param == "ripgrep" else without_ripgrep


def lay_out(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_absolute_paths_sorted_by_utf16(either: Workspace, root: Path) -> None:
    lay_out(root, "b.csv", "a.csv", "d/a.csv", "\uffee.csv", "\U0001f600.csv", "d/x.txt", ".hidden.csv", "d-e/a.csv")
    assert glob(either, "*.csv") == [
        f"{root}/a.csv",
        f"{root}/b.csv",
        f"{root}/d-e/a.csv",
        f"{root}/d/a.csv",
        f"{root}/\U0001f600.csv",
        f"{root}/\uffee.csv",
    ]
    assert glob(either, "d/*") == [f"{root}/d/a.csv", f"{root}/d/x.txt"]


def test_hidden_and_ignored_files_are_found_when_asked_for(either: Workspace, root: Path) -> None:
    lay_out(root, ".github/workflows/ci.yml", "build/out.js", ".git/hooks/x", "sub/.git/HEAD", "a/.venv/lib/x.py")
    (root / ".gitignore").write_text("build\n")
    assert glob(either, ".github/workflows/*.yml") == [f"{root}/.github/workflows/ci.yml"]
    assert glob(either, "**/.github/**/*.yml") == [f"{root}/.github/workflows/ci.yml"]
    assert glob(either, "build/out.js") == [f"{root}/build/out.js"]
    assert glob(either, ".gitignore") == [f"{root}/.gitignore"]
    assert glob(either, ".git/hooks/*") == [f"{root}/.git/hooks/x"]
    assert glob(either, "**/HEAD") == ["No files matched."]
    assert glob(either, "**/*.py") == ["No files matched."]


def test_a_root_of_its_own(either: Workspace, root: Path) -> None:
    lay_out(root, "d/e/a.py", "b.py")
    assert glob(either, "*.py", path="d") == [f"{root}/d/e/a.py"]
    assert glob(either, "e/*.py", path=f"{root}/d") == [f"{root}/d/e/a.py"]


def test_links_are_no_files_and_loops_end(either: Workspace, root: Path) -> None:
    lay_out(root, "d/a.py")
    (root / "loop").symlink_to(".")
    (root / "link.py").symlink_to("d/a.py")
    (root / "dangling.py").symlink_to("nowhere")
    os.mkfifo(root / "fifo.py")
    assert glob(either, "**/*.py") == [f"{root}/d/a.py"]
    assert glob(either, "loop/d/*.py") == [f"{root}/loop/d/a.py"]


@pytest.mark.parametrize("pattern", ["/workspace/*.py", "./*.py", "../*.py"])
def test_a_pattern_that_is_not_relative_matches_nothing_and_says_why(
    either: Workspace, root: Path, pattern: str
) -> None:
    lay_out(root, "a.py")
    assert glob(either, pattern) == [
        f"No files matched. A pattern is relative to {root}: it begins with a name or a wildcard."
    ]


def test_10_000_files_in_one_directory(either: Workspace, root: Path) -> None:
    for number in range(10_000):
        os.close(os.open(root / f"f{number:05}", os.O_CREAT))
    *shown, omitted = glob(either, "*")
    assert shown == [f"{root}/f{number:05}" for number in range(500)]
    assert omitted == "… 9500 more files omitted; narrow the pattern."


def test_more_matches_than_are_sorted(either: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 000 files would be the case; the bound is lowered instead."""
    monkeypatch.setattr(glob_tool, "GLOB_FILES", 1000)
    for directory in range(20):
        (root / f"d{directory:02}").mkdir()
        for number in range(100):
            (root / f"d{directory:02}/f{number:02}").touch()
    lay_out(root, "z/exactly.this")
    *shown, omitted = glob(either, "**")
    assert len(shown) == 500
    assert omitted == "… at least 500 more files omitted (the search ended at 1000 files); narrow the pattern."
    assert glob(either, "**/exactly.this") == [f"{root}/z/exactly.this"]


def test_a_search_that_takes_too_long_says_so(workspace: Workspace, root: Path, search: PopenSearch) -> None:
    lay_out(root, *(f"f{number}" for number in range(2000)))
    search.seconds = 1e-9
    assert glob(workspace, "g*") == ["No files matched (the search ended after 60 s)."]


def test_names_that_are_not_utf8_or_hold_a_line_break(either: Workspace, root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/n\xff.txt")).touch()
    (root / "line\nbreak.txt").touch()
    assert glob(either, "*.txt") == [f"{root}/line\\nbreak.txt", f"{root}/n\ufffd.txt"]


def test_a_root_that_is_none(either: Workspace, root: Path) -> None:
    lay_out(root, "f")
    assert refusal(either, "*", path="gone") == Failed("sandbox.not_found", f"No directory at {root}/gone")
    assert refusal(either, "*", path="f") == Failed("sandbox.glob_failed", f"{root}/f is not a directory.")


def test_a_pattern_without_measure_is_refused(either: Workspace) -> None:
    assert refusal(either, "{a,b}" * 12).message == (
        "The pattern cannot be used: its braces stand for more than 1000 patterns or 65536 characters."
    )
    assert refusal(either, "\ud83d").code == "sandbox.not_text"


def test_a_directory_that_cannot_be_read_hides_no_other(
    workspace: Workspace, without_ripgrep: Workspace, ordinary_user: Path
) -> None:
    lay_out(ordinary_user, "a/x", "b/x")
    (ordinary_user / "a").chmod(0o000)
    for given in (workspace, without_ripgrep):
        there = Workspace(str(ordinary_user), given.run_search, given.ripgrep)
        assert glob(there, "**/x") == [f"{ordinary_user}/b/x"]
