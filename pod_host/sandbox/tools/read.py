"""The tool read: a page of a text file, with line numbers, in bounded memory however long its lines are."""

from __future__ import annotations

import os
import shlex
from typing import Final

from pod_host.limits import LINE_CHARACTERS, READ_LINES, READ_PAGE_BYTES, READ_SCAN_BYTES
from pod_host.sandbox.outcomes import Completed
from pod_host.sandbox.tools.names import find_shown
from pod_host.sandbox.tools.opening import open_regular, refuse_binary
from pod_host.sandbox.tools.workspace import ToolFailure, Workspace

_CHUNK: Final = 256 * 1024
_KEPT: Final = 4 * LINE_CHARACTERS + 4  # bytes of a line that are kept: UTF-8 needs 4 a character at most


def read_file(workspace: Workspace, path: str, offset: int = 1, limit: int = READ_LINES) -> Completed:
    """Lines ``offset`` (1-based) to ``offset + limit - 1`` of the file at ``path``, as one string.

    A page ends early when it holds READ_PAGE_BYTES; what is left out is named, and how to read on. Bytes that are
    not UTF-8 show as U+FFFD. Never an empty string. Raises ``ToolFailure``.
    """
    absolute = find_shown(workspace.resolve(path))
    lines = _Lines(open_regular(absolute))
    try:
        refuse_binary(absolute, lines.start())
        skipped = lines.skip(offset - 1)
        if skipped < offset - 1 and lines.ended:
            return Completed(_nothing_there(absolute, skipped, offset))
        if skipped < offset - 1:
            raise ToolFailure(
                "sandbox.error",
                f"Line {offset} of {absolute} lies more than {READ_SCAN_BYTES >> 20} MiB into it: use bash.",
            )
        page = _page(lines, limit)
        if not page:
            return Completed(_nothing_there(absolute, skipped, offset))
        return Completed(_text(absolute, offset, page) + _what_follows(lines, offset + len(page)))
    except OSError as error:
        raise ToolFailure("sandbox.error", f"Could not read {absolute}: {error.strerror}") from None
    finally:
        lines.close()


def _page(lines: _Lines, limit: int) -> list[tuple[bytes, int]]:
    page: list[tuple[bytes, int]] = []
    size = 0
    while len(page) < limit and size < READ_PAGE_BYTES:
        if short := lines.take_short(limit - len(page), READ_PAGE_BYTES - size):
            page += [(line, len(line)) for line in short]
            size += sum(map(len, short))
        elif (line := lines.take()) is not None:
            page.append(line)
            size += len(line[0])
        else:
            break
    return page


def _text(path: str, offset: int, page: list[tuple[bytes, int]]) -> str:
    """The page, its numbers aligned, and what was cut out of its lines."""
    width = len(str(offset + len(page) - 1))
    text = b"\n".join(kept for kept, _ in page).decode("utf-8", "replace").replace("\0", "\ufffd")
    rows: list[str] = []
    cut: list[tuple[int, int]] = []  # number and bytes of each line that was not shown whole
    for number, (shown, (kept, length)) in enumerate(zip(text.split("\n"), page, strict=True), start=offset):
        if shown.endswith("\r") and length <= len(kept):
            shown = shown[:-1]  # a CRLF file reads like any other, and edit knows the difference
        if length > LINE_CHARACTERS and (len(shown) > LINE_CHARACTERS or length > len(kept)):
            shown = shown[:LINE_CHARACTERS] + "…"
            cut.append((number, length))
        rows.append(f"{str(number).rjust(width)}\t{shown}")
    if cut:
        number, length = cut[0]
        others = f" ({len(cut) - 1} more line(s) were cut too)" if len(cut) > 1 else ""
        command = f"sed -n {number}p {shlex.quote(path)} | cut -c {LINE_CHARACTERS + 1}-{2 * LINE_CHARACTERS}"
        rows.append(
            f"… line {number} has {length} bytes and was cut after {LINE_CHARACTERS} characters{others};"
            f" read on with bash: {command}"
        )
    return "\n".join(rows)


def _what_follows(lines: _Lines, following: int) -> str:
    rest, whole = lines.count_rest()
    if rest == 0:
        return "" if whole else "\n… more follows; read on with bash."
    return f"\n… {'' if whole else 'more than '}{rest} more line(s); read again with offset {following}."


def _nothing_there(path: str, lines: int, offset: int) -> str:
    if lines == 0:
        return f"{path} is empty."
    return f"{path} has {lines} line(s): there is nothing at offset {offset}."


class _Lines:
    """A file's lines from its start on. Holds one chunk and the first bytes of one line.

    Owns the descriptor. ``ended``: the file's end was met. Skipping and counting stop READ_SCAN_BYTES into the file,
    a line that is shown at twice as much: a sparse file may have a line of terabytes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunk = b""
        self._at = 0
        self._scanned = 0
        self.ended = False

    def close(self) -> None:
        os.close(self._descriptor)

    def start(self) -> bytes:
        """The first bytes of the file; they are still to be taken."""
        self._more()
        return self._chunk

    def skip(self, count: int) -> int:
        """Passes over ``count`` lines; returns how many there were."""
        left = count
        within = False  # a line was begun whose end is not seen yet
        while left > 0 and self._available():
            found = self._chunk.count(b"\n", self._at)
            if found < left:
                left -= found
                within = not self._chunk.endswith(b"\n")
                self._at = len(self._chunk)
                continue
            for _ in range(left):
                self._at = self._chunk.index(b"\n", self._at) + 1
            return count
        return count - left + (1 if within and self.ended and left > 0 else 0)

    def take_short(self, most: int, most_bytes: int) -> list[bytes]:
        """The next lines, ``most`` of them at most, where they lie together in what is at hand, none of them long; else
        none: they are to be taken one by one."""
        end = self._chunk.rfind(b"\n", self._at) + 1
        if not 0 < end - self._at < most_bytes:
            return []
        *lines, rest = self._chunk[self._at : end].split(b"\n", most)
        if max(map(len, lines)) > _KEPT:
            return []
        self._at = end - len(rest)
        return lines

    def take(self) -> tuple[bytes, int] | None:
        """The next line: its first bytes, and its length in bytes, without the line end. None at the file's end."""
        kept = bytearray()
        length = 0
        while self._available(2 * READ_SCAN_BYTES):
            end = self._chunk.find(b"\n", self._at)
            stop = len(self._chunk) if end < 0 else end
            kept += self._chunk[self._at : min(stop, self._at + _KEPT - len(kept))]
            length += stop - self._at
            self._at = stop if end < 0 else end + 1
            if end >= 0:
                return bytes(kept), length
        return (bytes(kept), length) if length else None

    def count_rest(self) -> tuple[int, bool]:
        """How many lines are left, and whether all were counted."""
        lines = 0
        within = False
        while self._available():
            lines += self._chunk.count(b"\n", self._at)
            within = not self._chunk.endswith(b"\n")
            self._at = len(self._chunk)
        return lines + (1 if within else 0), self.ended

    def _available(self, most: int = READ_SCAN_BYTES) -> bool:
        """Whether bytes are at hand; reads on when there are none and fewer than ``most`` were read so far."""
        if self._at < len(self._chunk):
            return True
        if self.ended or self._scanned >= most:
            return False
        return self._more()

    def _more(self) -> bool:
        self._chunk = os.read(self._descriptor, _CHUNK)
        self._at = 0
        self._scanned += len(self._chunk)
        self.ended = not self._chunk
        return bool(self._chunk)
