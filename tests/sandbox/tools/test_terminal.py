"""Output for a screen, as the screen would stand at its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.sandbox.tools.terminal import last_state


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\r\r\nb", "a\nb"),
        ("".join(f"\r{number}%" for number in range(1, 1001)), "1000%"),
        ("long line\rshort", "shortline"),
        ("100%\r  5%", "  5%"),
        ("working...\r\x1b[Kdone\n", "done\n"),
        ("working...\x1b[2K\rdone\n", "done\n"),
        ("abcdef\x1b[3D\x1b[1KX", "   Xef"),
        ("abcdef\x1b[1Gx\x1b[2Cy", "xbcyef"),
        ("|\b/\b-\b\\", "\\"),
        ("N\bNA\bAME", "NAME"),
        ("\x1b[1;31mred\x1b[0m \x1b[38;5;12mblue\x1b[m", "red blue"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        ("\x1b(Bx\x1b=y\x1bPdcs\x1b\\z", "xyz"),
        ("cut off\x1b[3", "cut off"),
        ("cut off\x1b", "cut off"),
        ("bell\x07 nul\x00", "bell nul\ufffd"),
        ("\x1b[999999999999Gx", "\ufffd"),
        ("up\x1b[1Athere\x1b[H", "upthere"),
        ("two\nlines\rL", "two\nLines"),
        ("\x1b[31m", ""),
    ],
)
def test_last_state(written: str, shown: str) -> None:
    if shown == "\ufffd":  # a column out of all reason: bounded blanks
        assert last_state(written).strip(" ") == "x"
        assert len(last_state(written)) < 5000
    else:
        assert last_state(written) == shown


@given(st.text(alphabet="ab \r\n\b\x1b[]0;9KGCDm\x07\\", max_size=40))
def test_nothing_of_a_terminal_is_left_and_lines_are_kept(written: str) -> None:
    shown = last_state(written)
    assert not set(shown) & set("\r\b\x1b\x07")
    assert shown.count("\n") <= written.count("\n")
