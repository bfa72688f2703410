"""The tool edit: one text for another, found exactly, and not a byte changed outside of it.

Line ends are the one freedom: a model is shown lines, not their ends. ``\\n`` in ``old_string`` matches ``\\r\\n`` too,
and what replaces it gets the line ends of the place it goes to. Where old and new differ in nothing but line ends, the
change of line ends is what was asked for, and new is taken as it stands.
"""

from __future__ import annotations

import os
from typing import Final

from pod_host.limits import EDIT_BYTES
from pod_host.sandbox.outcomes import Completed
from pod_host.sandbox.tools.names import find_shown
from pod_host.sandbox.tools.opening import open_regular, refuse_binary, utf8
from pod_host.sandbox.tools.placing import put
from pod_host.sandbox.tools.workspace import ToolFailure, Workspace

_COUNTED: Final = 1000  # occurrences that are counted for a message
_NAMED: Final = 20  # lines that it names


def edit_file(
    workspace: Workspace, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> Completed:
    """Replaces ``old_string`` in ``path`` by ``new_string``. ``{path, replacements}``.

    It must occur once, occurrences counted as they overlap; with ``replace_all`` each is replaced, from the start on,
    none overlapping the one before. Raises ``ToolFailure``: ``sandbox.not_found``, ``sandbox.binary``,
    ``sandbox.not_text``, ``sandbox.edit_noop``, ``sandbox.edit_no_match``, ``sandbox.edit_not_unique``,
    ``sandbox.write_failed``, ``sandbox.error``.
    """
    absolute = find_shown(workspace.resolve(path))
    old, new = utf8(old_string, "old_string"), utf8(new_string, "new_string")
    real = os.path.realpath(absolute)
    workspace.require_writable(absolute, real)
    with workspace.locks.holding(real):
        content = _text(absolute, real)
        if old == new:
            raise ToolFailure("sandbox.edit_noop", "old_string and new_string are identical")
        edit = _Edit(content, old, new)
        places = edit.places(1 if replace_all else _COUNTED + 1)
        if not places:
            raise ToolFailure(
                "sandbox.edit_no_match",
                f"old_string was not found in {absolute}. Read the file and copy the text exactly.",
            )
        if len(places) > 1 and not replace_all:
            raise ToolFailure("sandbox.edit_not_unique", edit.not_unique(absolute, places))
        changed, replacements = edit.made()
        if changed == content:
            raise ToolFailure(
                "sandbox.edit_noop", f"Nothing would change: {absolute} already has these line ends where it matches."
            )
        put(absolute, real, changed)
    return Completed({"path": absolute, "replacements": replacements})


def _text(path: str, real: str) -> bytes:
    """The whole content of the text file at ``real``."""
    try:
        descriptor = open_regular(real)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(EDIT_BYTES + 1)
    except ToolFailure as failure:
        raise ToolFailure(failure.code, failure.message.replace(real, path)) from None
    except OSError as error:
        raise ToolFailure("sandbox.error", f"Could not read {path}: {error.strerror}") from None
    if len(content) > EDIT_BYTES:
        raise ToolFailure("sandbox.error", f"{path} is larger than {EDIT_BYTES >> 20} MiB: edit it with bash.")
    refuse_binary(path, content)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise ToolFailure(
            "sandbox.not_text",
            f"{path} is not UTF-8 text (byte {error.start} is 0x{content[error.start]:02x}). It was not changed;"
            " edit it with bash.",
        ) from None
    return content


class _Edit:
    """One replacement in one content. Places are offsets into ``self._text``: the content with ``\\n`` for ``\\r\\n``."""

    def __init__(self, content: bytes, old: bytes, new: bytes) -> None:
        self._content = content
        self._old = _lf(old)
        self._new = new
        self._line_ends_alone = self._old == _lf(new)
        self._old_had_crlf = b"\r\n" in old
        # A lone \r in old_string is asked for as such: then line ends stand for themselves.
        if b"\r" in self._old:
            self._old, self._text, self._old_had_crlf = old, content, False
        else:
            self._text = _lf(content)
        self._same = len(self._text) == len(content)
        self._line_end, self._line_end_is_crlf = -1, False

    def places(self, most: int) -> list[int]:
        """Where ``old`` begins, overlapping places too; the first ``most`` of them."""
        found: list[int] = []
        at = self._text.find(self._old)
        while at >= 0 and len(found) < most:
            found.append(at)
            at = self._text.find(self._old, at + 1)
        return found

    def not_unique(self, path: str, places: list[int]) -> str:
        more = len(places) > _COUNTED
        numbers: list[int] = []
        line, counted = 1, 0
        for place in places[:_NAMED]:
            line += self._text.count(b"\n", counted, place)
            counted = place
            numbers.append(line)
        named = ", ".join(map(str, numbers)) + (", …" if len(places) > _NAMED else "")
        return (
            f"old_string appears {f'more than {_COUNTED}' if more else len(places)} times in {path}."
            " Add surrounding context to make it unique, or set replace_all."
            f" It begins on lines {named}."
        )

    def made(self) -> tuple[bytes, int]:
        """The content with each ``old`` replaced, none overlapping the one before; and how many they were.

        What lies between them is copied byte for byte.
        """
        if self._same:  # no CRLF to look at: every place gets the same
            new = _lf(self._new) if self._old_had_crlf and not self._line_ends_alone else self._new
            return self._content.replace(self._old, new), self._content.count(self._old)
        made = bytearray()
        copied = at_text = replaced = 0  # copied: how far the content is; at_text: the same point in the text
        while (place := self._text.find(self._old, at_text)) >= 0:
            start = self._forward(copied, place - at_text)
            end = self._forward(start, len(self._old))
            made += self._content[copied:start]
            made += self._replacement(start)
            copied, at_text, replaced = end, place + len(self._old), replaced + 1
        made += self._content[copied:]
        return bytes(made), replaced

    def _forward(self, start: int, count: int) -> int:
        """From offset ``start`` of the content, ``count`` bytes of the text further on."""
        end = start + count
        # Each \r\n on the way takes one byte more; those bytes may hold further ones.
        while (reached := start + count + self._content.count(b"\r\n", start, end)) != end:
            end = reached
        # A \r that is half of a line end is no byte of the text: the line end is passed whole.
        return end + 1 if end > start and self._content[end - 1 : end + 1] == b"\r\n" else end

    def _replacement(self, start: int) -> bytes:
        """``new`` with the line ends of the place it goes to."""
        if self._line_ends_alone:
            return self._new
        if self._crlf_at(start):
            return _lf(self._new).replace(b"\n", b"\r\n")
        return _lf(self._new) if self._old_had_crlf else self._new

    def _crlf_at(self, start: int) -> bool:
        """Whether the line end at or after ``start`` is a CRLF; where there is none, the last one of the content.

        Asked for places from the start on, so each line end is looked for once.
        """
        if self._line_end < start:
            following = self._content.find(b"\n", start)
            line_end = following if following >= 0 else self._content.rfind(b"\n")
            self._line_end = following if following >= 0 else len(self._content)
            self._line_end_is_crlf = line_end > 0 and self._content[line_end - 1] == 0x0D
        return self._line_end_is_crlf


def _lf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")
