"""edit: one text for another, judged strictly, and no other byte touched."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod_host.limits import EDIT_BYTES
from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools.edit import _Edit
from pod_host.sandbox.tools.running import Workspace, run_file_tool
from tests.sandbox.tools.conftest import peak_memory


def edit(workspace: Workspace, old: str, new: str, *, replace_all: bool = False, path: str = "f") -> int:
    members = {"path": path, "old_string": old, "new_string": new, "replace_all": replace_all}
    outcome = run_file_tool("edit", members, workspace)
    assert isinstance(outcome, Completed), outcome
    assert outcome.output["path"] == str(Path(workspace.root) / path)
    replacements = outcome.output["replacements"]
    assert isinstance(replacements, int)
    return replacements


def refusal(workspace: Workspace, old: str, new: str, *, replace_all: bool = False, path: str = "f") -> Failed:
    members = {"path": path, "old_string": old, "new_string": new, "replace_all": replace_all}
    outcome = run_file_tool("edit", members, workspace)
    assert isinstance(outcome, Failed), outcome
    return outcome


def test_one_place(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("one\ntwo\nthree\n")
    assert edit(workspace, "two\nth", "2\nTH") == 1
    assert (root / "f").read_text() == "one\n2\nTHree\n"


def test_every_place(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("a.a.a")
    assert edit(workspace, "a", "bb", replace_all=True) == 3
    assert (root / "f").read_text() == "bb.bb.bb"
    assert edit(workspace, "bb.bb.bb", "", replace_all=True) == 1
    assert (root / "f").read_text() == ""


def test_nothing_in_the_texts_has_a_meaning(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("a.c abc $1 \\1")
    assert edit(workspace, "a.c", r"$& \1 \g<0>") == 1
    assert (root / "f").read_text() == r"$& \1 \g<0> abc $1 \1"


def test_refusals_and_their_texts(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x\ny\nx\n")
    assert refusal(workspace, "x", "x") == Failed("sandbox.edit_noop", "old_string and new_string are identical")
    assert refusal(workspace, "z", "y") == Failed(
        "sandbox.edit_no_match",
        f"old_string was not found in {root}/f. Read the file and copy the text exactly.",
    )
    assert refusal(workspace, "x", "z", path="missing") == Failed("sandbox.not_found", f"No file at {root}/missing")
    assert (root / "f").read_text() == "x\ny\nx\n"


def test_a_text_in_3_places_names_their_lines(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x = 1\n\nx = 1\ny\nx = 1\n")
    assert refusal(workspace, "x = 1", "x = 2") == Failed(
        "sandbox.edit_not_unique",
        f"old_string appears 3 times in {root}/f. Add surrounding context to make it unique, or set replace_all."
        " It begins on lines 1, 3, 5.",
    )


def test_very_many_places_are_counted_to_an_end(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x\n" * 5000)
    message = refusal(workspace, "x", "y").message
    assert "appears more than 1000 times" in message
    assert message.endswith("It begins on lines " + ", ".join(map(str, range(1, 21))) + ", ….")


def test_overlapping_places_are_not_one(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x\nx\nx")
    assert "appears 2 times" in refusal(workspace, "x\nx", "y").message
    assert edit(workspace, "x\nx", "y", replace_all=True) == 1
    assert (root / "f").read_text() == "y\nx"


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_crlf_file_takes_lf_text_and_stays_crlf(workspace: Workspace, root: Path, bom: bytes) -> None:
    (root / "f").write_bytes(bom + b"one\r\ntwo\r\n\r\none\r\ntwo\r\nlast")
    assert "appears 2 times" in refusal(workspace, "one\ntwo\n", "1\n2\n3\n").message
    assert refusal(workspace, "one\ntwo\n", "1").message.endswith("lines 1, 4.")
    assert edit(workspace, "one\ntwo\n", "1\n2\n3\n", replace_all=True) == 2
    assert (root / "f").read_bytes() == bom + b"1\r\n2\r\n3\r\n\r\n1\r\n2\r\n3\r\nlast"
    assert edit(workspace, "last", "a\nb") == 1
    assert edit(workspace, "\n\n", "\n") == 1
    assert edit(workspace, "3\r\n1", "3\r\n\r\n1\n") == 1
    assert (root / "f").read_bytes() == bom + b"1\r\n2\r\n3\r\n\r\n1\r\n\r\n2\r\n3\r\na\r\nb"


def test_crlf_text_fits_an_lf_file(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("a\nb\nc\n")
    assert edit(workspace, "a\r\nb", "x\r\ny") == 1
    assert (root / "f").read_bytes() == b"x\ny\nc\n"


def test_a_mixed_file_keeps_each_places_line_ends(workspace: Workspace, root: Path) -> None:
    (root / "f").write_bytes(b"a\r\nb\nc\r\na\nb\nd")
    assert edit(workspace, "a\nb\nc", "A\nB") == 1
    assert (root / "f").read_bytes() == b"A\r\nB\r\na\nb\nd"
    assert edit(workspace, "d", "1\n2") == 1
    assert (root / "f").read_bytes() == b"A\r\nB\r\na\nb\n1\n2"


@pytest.mark.parametrize(
    ("content", "old", "new", "changed"),
    [
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"a\nb\n", "a\nb", "a\r\nb", b"a\r\nb\n"),
        (b"a\r\nb\nc", "\r\n", "\n", b"a\nb\nc"),
        (b"a\r\nb\nc", "\n", "\r\n", b"a\r\nb\r\nc"),
        (b"a\r\nb\r\n", "a\nb", "a\r\nb", None),
        (b"a\nb\n", "a\r\nb", "a\nb", None),
        (b"a\rb\r\n", "\r", "\n", b"a\nb\n\n"),
    ],
)
def test_line_ends_alone_are_changed_or_refused(
    workspace: Workspace, root: Path, content: bytes, old: str, new: str, changed: bytes | None
) -> None:
    """Never "1 replacement" and the same file."""
    (root / "f").write_bytes(content)
    if changed is None:
        assert refusal(workspace, old, new, replace_all=True).code == "sandbox.edit_noop"
        assert (root / "f").read_bytes() == content
    else:
        edit(workspace, old, new, replace_all=True)
        assert (root / "f").read_bytes() == changed


LINES = st.lists(st.sampled_from(["a", "b", "ab", "\n", "\r\n"]), max_size=20).map("".join)


@given(content=LINES, old=st.text(alphabet="ab\n", min_size=1, max_size=4), new=st.text(alphabet="cd\n", max_size=4))
@settings(max_examples=1000, deadline=None)
def test_places_are_those_of_the_text_without_cr(content: str, old: str, new: str) -> None:
    """Against a plain statement of the rule: a line end is CRLF or LF, and a replacement takes its place's own."""
    made, count = _Edit(content.encode(), old.encode(), new.encode()).made()
    pattern = re.compile("".join("(?:\r\n|(?<!\r)\n)" if character == "\n" else character for character in old))
    places = [match.start() for match in pattern.finditer(content)]
    assert count == len(places)
    assert made.replace(b"\r\n", b"\n").decode() == content.replace("\r\n", "\n").replace(old, new)


def test_what_is_no_text_is_refused_and_not_touched(workspace: Workspace, root: Path) -> None:
    for content, code in [
        ("café x\n".encode("latin-1"), "sandbox.not_text"),
        ("x".encode("utf-16"), "sandbox.binary"),
        (b"x\0y", "sandbox.binary"),
    ]:
        (root / "f").write_bytes(content)
        assert refusal(workspace, "x", "y").code == code
        assert (root / "f").read_bytes() == content


def test_half_a_character_is_a_clear_failure(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x")
    assert "old_string holds half" in refusal(workspace, "\ud83d", "y").message
    assert "new_string holds half" in refusal(workspace, "x", "\ude00").message


def test_what_is_no_file_is_refused(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "f")
    (root / "link").symlink_to("f")
    assert refusal(workspace, "a", "b").message == f"{root}/f is a FIFO, not a regular file."
    assert refusal(workspace, "a", "b", path="link").message == f"{root}/link is a FIFO, not a regular file."


def test_a_file_too_large_to_hold_is_refused(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x")
    os.truncate(root / "f", EDIT_BYTES + 1)
    assert "larger than 32 MiB" in refusal(workspace, "x", "y").message


def test_the_largest_file_is_edited_in_bounded_memory(workspace: Workspace, root: Path) -> None:
    filler, lines = b"x" * 1018, EDIT_BYTES // 1024
    (root / "f").write_bytes((filler + b"abcd\r\n") * lines)
    with peak_memory(5 * EDIT_BYTES):
        assert edit(workspace, "abcd\n", "ABCD\n", replace_all=True) == lines
    assert (root / "f").read_bytes() == (filler + b"ABCD\r\n") * lines


def test_mode_and_link_are_kept(workspace: Workspace, root: Path) -> None:
    (root / "target").write_text("x")
    (root / "target").chmod(0o750)
    (root / "f").symlink_to("target")
    edit(workspace, "x", "y")
    assert (root / "f").is_symlink()
    assert (root / "target").read_text() == "y"
    assert stat.S_IMODE((root / "target").stat().st_mode) == 0o750
