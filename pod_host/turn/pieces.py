"""Large values done in pieces: JSON, base64 and hashes of many megabytes, with the event loop going on beside."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from typing import Final

from pod_host import limits
from pod_host.contract.base import Json
from pod_host.contract.encoding import encode, encode_in_pieces, is_small

_SPACE: Final = re.compile(r"\s+")
_PIECE: Final = limits.LOOP_PIECE_BYTES // 4 * 4  # whole groups of base64


async def json_text(value: Json) -> bytes:
    """``value`` as compact JSON. Raises ContractViolation for what is not JSON."""
    if is_small(value, limits.LOOP_PIECE_BYTES):
        return encode(value)
    pieces = []
    for piece in encode_in_pieces(value, limits.LOOP_PIECE_BYTES):
        pieces.append(piece)
        await asyncio.sleep(0)
    return b"".join(pieces)


def is_deep(value: Json, most: int) -> bool:
    """Whether ``value`` is nested more than ``most`` levels deep."""
    level = [value]
    for _ in range(most + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


async def base64_bytes(text: str) -> bytes | None:
    """The bytes that ``text`` stands for, line breaks and a missing padding forgiven; None when it is no base64."""
    plain = _SPACE.sub("", text).rstrip("=")
    plain += "=" * (-len(plain) % 4)
    pieces = []
    try:
        for start in range(0, len(plain), _PIECE):
            pieces.append(base64.b64decode(plain[start : start + _PIECE], validate=True))
            await asyncio.sleep(0)
    except (binascii.Error, ValueError):
        return None
    return b"".join(pieces)


async def sha256_of(data: bytes) -> str:
    """64 hexadecimal digits."""
    if len(data) <= limits.LOOP_PIECE_BYTES:
        return hashlib.sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())  # hashlib frees the interpreter's lock
