"""What stands in a long text's place: its beginning and its end, in whole characters, within a number of bytes."""

from __future__ import annotations

from typing import Final

from pod_host import limits
from pod_host.contract.encoding import encode
from pod_host.turn.text import readable

_BETWEEN: Final = "\n…\n"


def preview(text: str, most_json_bytes: int) -> str:
    """The first 4 and the last 1 of 5 parts of RESULT_PREVIEW_BYTES in UTF-8, or fewer, so that its JSON takes no more
    than ``most_json_bytes``; ``text`` itself where it is that short."""
    most = limits.RESULT_PREVIEW_BYTES
    while most > 0:
        shown = _cut(text, most)
        size = _json_bytes(shown)
        if size <= most_json_bytes:
            return shown
        most = min(most - 1, most * max(most_json_bytes, 0) // size)
    return ""


def fitting_prefix(text: str, most_json_bytes: int) -> str:
    """The longest beginning of ``text`` whose JSON takes at most ``most_json_bytes``, beside its quotes."""
    low, high = 0, min(len(text), max(most_json_bytes, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if _json_bytes(text[:middle]) <= most_json_bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _cut(text: str, most: int) -> str:
    # Characters first: of a text of many megabytes only the ends are looked at.
    ends = text if len(text) <= 2 * most else text[:most] + text[-most:]
    data = readable(ends).encode()
    if len(text) <= 2 * most and len(data) <= most:
        return data.decode()
    tail = most // 5
    head = most - tail
    return data[:head].decode(errors="ignore") + _BETWEEN + (data[-tail:].decode(errors="ignore") if tail else "")


def _json_bytes(text: str) -> int:
    return len(encode(text)) - 2
