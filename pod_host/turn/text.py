"""Texts that cross: the contract's are Unicode, a model's or a file system's need not be; and texts that are too long."""

from __future__ import annotations

from typing import Final

_NOTE_CHARACTERS: Final = 80  # that the note in a shortened text takes: one so little too long would only grow


def readable(text: str) -> str:
    """``text`` with half surrogate pairs as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, length: int, why: str = "left out here") -> str:
    """``text`` in about ``length`` characters: three quarters of them its beginning, one its end, and how many are missing
    between."""
    if len(text) <= length + _NOTE_CHARACTERS:
        return text
    head, tail = length - length // 4, length // 4
    return f"{text[:head]}\n… [{len(text) - length} characters {why}] …\n{text[-tail:]}"
