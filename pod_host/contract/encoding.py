"""JSON text and back. orjson does the work; what it refuses and the contract allows goes through the standard library:
a lone surrogate, which ECMAScript writes as an escape."""

from __future__ import annotations

import json

import orjson

from pod_host.contract.base import Json
from pod_host.errors import ContractViolation


def encode(value: Json) -> bytes:
    """``value`` as compact JSON in UTF-8. Raises ContractViolation for what is not JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _encode_slowly(value)


def _encode_slowly(value: Json) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as fault:
        raise ContractViolation(f"not JSON: {fault}") from None


def decode(text: str | bytes) -> Json:
    """Parse JSON text. Raises ContractViolation for anything else."""
    try:
        return orjson.loads(text)
    except ValueError:
        return _decode_slowly(text)


def _decode_slowly(text: str | bytes) -> Json:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as fault:
        raise ContractViolation(f"not JSON: {fault}") from None


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")
