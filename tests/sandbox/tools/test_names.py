"""Names that are not UTF-8 are listed, and found again by what was shown."""

from __future__ import annotations

import os
from pathlib import Path

from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools.names import as_shown
from pod_host.sandbox.tools.running import Workspace, run_file_tool


def make(workspace: Workspace, name: bytes, content: bytes = b"first\nsecond\n") -> bytes:
    path = os.path.join(os.fsencode(workspace.root), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).write_bytes(content)
    return path


def test_a_listed_name_that_is_not_utf8_is_read_searched_and_edited(workspace: Workspace) -> None:
    path = make(workspace, b"dir\xfe/bad\xff\xfe \xc3\xa9.txt")
    listed = run_file_tool("glob", {"pattern": "**/*.txt"}, workspace)
    shown = f"{workspace.root}/dir\ufffd/bad\ufffd\ufffd é.txt"
    assert listed == Completed(shown)
    assert run_file_tool("read", {"path": shown}, workspace) == Completed("1\tfirst\n2\tsecond")
    assert run_file_tool("grep", {"pattern": "sec", "path": shown}, workspace) == Completed("2:second")
    edited = run_file_tool("edit", {"path": shown, "old_string": "first", "new_string": "1st"}, workspace)
    assert edited == Completed({"path": shown, "replacements": 1})
    wrote = run_file_tool("write", {"path": shown, "content": "new"}, workspace)
    assert wrote == Completed({"path": shown, "bytes": 3})
    assert Path(os.fsdecode(path)).read_bytes() == b"new"
    assert len(os.listdir(os.path.dirname(path))) == 1


def test_a_name_that_holds_the_replacement_character_itself_comes_first(workspace: Workspace) -> None:
    make(workspace, b"x\xff", b"odd")
    make(workspace, "x\ufffd".encode(), b"real")
    assert run_file_tool("read", {"path": "x\ufffd"}, workspace) == Completed("1\treal")


def test_names_that_are_shown_alike_are_not_guessed_between(workspace: Workspace) -> None:
    make(workspace, b"x\xff")
    make(workspace, b"x\xfe")
    outcome = run_file_tool("read", {"path": "x\ufffd"}, workspace)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.message[:7]) == ("sandbox.not_found", "2 names")


def test_a_new_name_may_hold_the_replacement_character(workspace: Workspace) -> None:
    assert isinstance(run_file_tool("write", {"path": "new\ufffd", "content": "x"}, workspace), Completed)
    assert os.listdir(os.fsencode(workspace.root)) == ["new\ufffd".encode()]


def test_no_text_of_an_answer_breaks_it() -> None:
    assert as_shown("plain é") == "plain é"
    assert as_shown("x\udcff\udcfe") == "x\ufffd\ufffd"
    assert as_shown("half \ud83d") == "half \ufffd"
