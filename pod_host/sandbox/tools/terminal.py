"""What a terminal would show in the end of a command's output: progress lines in their last state, no escape codes.

A command writes for a person at a screen: ``\\r`` to write a line over, colours, a cursor that moves. A model reads it
all as noise, thousands of times over. One line is the screen here: what moves between lines is left out, not followed.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"(?P<csi>\x1b\[(?P<argument>[0-?]*)[ -/]*(?P<final>[@-~]|$))"  # cursor, colour, erase; perhaps cut off at the end
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)?"  # title, link
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\|$)?"  # strings for the terminal itself
    r"|\x1b[ -/]*[0-~]?"  # every other escape
    r"|(?P<move>[\r\b])"
    r"|(?P<text>[^\x1b\r\b]+)"
)
_CONTROL: Final = re.compile(r"[\x1b\r\b]")
_UNSHOWN: Final = {0: "\ufffd", 7: None}  # a NUL is refused by many a JSON store; a bell is no text
_FARTHEST_COLUMN: Final = 4096  # a column that a cursor is sent to, at most: it costs blanks


def last_state(text: str) -> str:
    """``text`` as it stands on a screen at its end, lines kept, CRLF become LF."""
    if _CONTROL.search(text) is not None:
        text = "\n".join(line if _CONTROL.search(line) is None else _line(line) for line in text.split("\n"))
    return text.translate(_UNSHOWN)


def _line(line: str) -> str:
    """One line, played through."""
    cells: list[str] = []
    column = 0
    for token in _TOKEN.finditer(line.rstrip("\r")):
        if (shown := token["text"]) is not None:
            cells.extend(" " * (column - len(cells)))
            cells[column : column + len(shown)] = shown
            column += len(shown)
        elif (move := token["move"]) is not None:
            column = 0 if move == "\r" else max(0, column - 1)
        elif token["csi"] is not None:
            column = _control(cells, column, token["final"], token["argument"])
    return "".join(cells).rstrip(" ")


def _control(cells: list[str], column: int, final: str, argument: str) -> int:
    """Applies one control sequence to the line; returns the column it leaves the cursor in."""
    number = int(argument[:6]) if argument.isdecimal() else None
    if final == "K":
        if number in (None, 0):
            del cells[column:]
        elif number == 1:
            cells[:column] = " " * min(column, len(cells))
        else:
            cells.clear()
        return column
    steps = number or 1
    moved = {"C": column + steps, "D": column - steps, "G": steps - 1}.get(final, column)
    return max(0, min(moved, max(_FARTHEST_COLUMN, len(cells))))
