"""JSON text and back.

orjson does the work; what it refuses and the contract allows is done here: a lone surrogate, which ECMAScript writes as
an escape, a whole number of more than 64 bits, deep nesting. Numbers that JSON lacks (NaN, Infinity) leave as ``null``, as
JSON.stringify and the request hash have it, and never come in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import orjson

from pod_host.contract.base import Json
from pod_host.errors import ContractViolation

Utf8: TypeAlias = bytes | bytearray | memoryview
"""Text as its bytes, which need not be UTF-8 until somebody has looked."""

_NODE_BYTES = 64  # what one value counts for at least when sizes are estimated: bounds the walk, not the text


def encode(value: Json) -> bytes:
    """``value`` as compact JSON in UTF-8. Raises ContractViolation for what is not JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"".join(_written(value))


def encode_in_pieces(value: Json, most: int) -> Iterator[bytes]:
    """The text of `encode`, in pieces of about ``most`` bytes: for a caller that must not be busy for long at once."""
    try:
        yield from _pieces(value, most)
    except RecursionError:
        raise ContractViolation("not JSON: nested too deeply") from None


def is_small(value: Json, most: int) -> bool:
    """Whether the text of ``value`` is surely of the order of ``most`` bytes or less. Looks at no more than it must."""
    return _left(value, most) > 0


def decode(text: str | Utf8) -> Json:
    """Parse JSON text, bytes as UTF-8. Raises ContractViolation for anything else."""
    try:
        return orjson.loads(text)
    except ValueError:
        return _decode_slowly(text)


def _decode_slowly(text: str | Utf8) -> Json:
    try:
        whole = text if isinstance(text, str) else bytes(text).decode()
        return json.loads(whole, parse_constant=_refuse)
    except (ValueError, RecursionError) as fault:
        raise ContractViolation(f"not JSON: {fault}") from None


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


def _left(value: Json, budget: int) -> int:
    """What the text of ``value`` leaves of ``budget``, by a low estimate; 0 or less once it is spent."""
    waiting = [value]
    while waiting and budget > 0:
        node = waiting.pop()
        budget -= _NODE_BYTES
        if node is None or isinstance(node, int):
            continue
        if isinstance(node, str):
            budget -= len(node)
        elif isinstance(node, list | tuple):
            if _NODE_BYTES * len(node) > budget:
                return 0
            waiting.extend(node)
        elif isinstance(node, (dict, Mapping)):
            if 2 * _NODE_BYTES * len(node) > budget:
                return 0
            budget -= sum([len(key) for key in node if isinstance(key, str)]) + _NODE_BYTES * len(node)
            waiting.extend(node.values())
    return budget


def _pieces(value: Json, most: int) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > most:
        yield b'"'
        for start in range(0, len(value), most):
            yield encode(value[start : start + most])[1:-1]
        yield b'"'
    elif isinstance(value, Mapping) and value and not is_small(value, most):
        names, items = list(value), list(value.values())
        before = b"{"
        for start, end in _batches(items, most):
            yield before
            if end - start == 1:
                yield _key(names[start]) + b":"
                yield from _pieces(items[start], most)
            else:
                yield encode(dict(zip(names[start:end], items[start:end], strict=True)))[1:-1]
            before = b","
        yield b"}"
    elif isinstance(value, list | tuple) and value and not is_small(value, most):
        before = b"["
        for start, end in _batches(value, most):
            yield before
            if end - start == 1:
                yield from _pieces(value[start], most)
            else:
                yield encode(value[start:end])[1:-1]
            before = b","
        yield b"]"
    else:
        yield encode(value)


def _batches(items: Sequence[Json], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of ``items``: several that are small together, or one."""
    start, budget = 0, most
    for index, item in enumerate(items):
        left = _left(item, budget)
        if left <= 0 and index > start:
            yield start, index
            start, left = index, _left(item, most)
        if left <= 0:
            yield index, index + 1
            start, left = index + 1, most
        budget = left
    if start < len(items):
        yield start, len(items)


def _written(value: Json) -> list[bytes]:
    parts: list[bytes] = []
    try:
        _write(value, parts)
    except RecursionError:
        raise ContractViolation("not JSON: nested too deeply") from None
    return parts


def _write(value: Json, parts: list[bytes]) -> None:
    if isinstance(value, Mapping):
        before = b"{"
        for key, item in value.items():
            parts += (before, _key(key), b":")
            _write(item, parts)
            before = b","
        parts.append(b"}" if before == b"," else b"{}")
    elif isinstance(value, list | tuple):
        before = b"["
        for item in value:
            parts.append(before)
            _write(item, parts)
            before = b","
        parts.append(b"]" if before == b"," else b"[]")
    else:
        parts.append(_scalar(value))


def _key(key: Json) -> bytes:
    if not isinstance(key, str):
        raise ContractViolation(f"not JSON: a member's name is a {type(key).__name__}")
    return _scalar(key)


def _scalar(value: Json) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        if isinstance(value, str | int):
            return json.dumps(value).encode("ascii")  # a lone surrogate as its escape; a long whole number
        raise ContractViolation(f"not JSON: a {type(value).__name__}") from None
