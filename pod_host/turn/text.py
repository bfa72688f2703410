"""Texts that cross: the contract's are Unicode, a model's or a file system's need not be."""

from __future__ import annotations


def readable(text: str) -> str:
    """``text`` with half surrogate pairs as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
