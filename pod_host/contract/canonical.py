"""The request hash and the effect ids (Harness API v5, section 4).

The hash is SHA-256 over one canonical JSON text of the whole intent: members sorted by UTF-16 code unit, no spaces, text
and numbers as ECMAScript writes them. Core computes it anew for every effect but a model's, so a byte's difference is a
refused effect.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping

from pod_host.contract.base import Json
from pod_host.errors import ContractViolation

_SURROGATE = re.compile("[\ud800-\udfff]")
_encode_text = json.JSONEncoder(ensure_ascii=False).encode


def canonical(value: Json) -> bytes:
    """The canonical JSON text of ``value``, as UTF-8. Raises ContractViolation for what is not JSON."""
    parts: list[bytes] = []
    try:
        _write(value, parts)
    except RecursionError:
        raise ContractViolation("not JSON: nested too deeply") from None
    return b"".join(parts)


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """An object whose members' values are canonical already: for a large value that was encoded before."""
    return b"{" + b",".join(_text(key) + b":" + members[key] for key in sorted(members, key=_key_order)) + b"}"


def canonical_array(items: Iterable[bytes]) -> bytes:
    """An array whose items are canonical already."""
    return b"[" + b",".join(items) + b"]"


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def effect_request_hash(intent: Mapping[str, Json]) -> str:
    """The ``requestHash`` of an intent: for a model effect, of the intent with ``input`` set to its ModelCall."""
    hashed = {key: value for key, value in intent.items() if not (key == "context" and _is_delegation(intent))}
    return sha256_hex(canonical(hashed))


def _is_delegation(intent: Mapping[str, Json]) -> bool:
    return intent.get("kind") == "delegation"


def _write(value: Json, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"null")
    elif value is True:
        parts.append(b"true")
    elif value is False:
        parts.append(b"false")
    elif isinstance(value, str):
        parts.append(_text(value))
    elif isinstance(value, int | float):
        parts.append(number_text(value).encode())
    elif isinstance(value, Mapping):
        _write_object(value, parts)
    elif isinstance(value, list | tuple):
        separator = b"["
        for item in value:
            parts.append(separator)
            _write(item, parts)
            separator = b","
        parts.append(b"]" if separator == b"," else b"[]")
    else:
        raise ContractViolation(f"not JSON: a {type(value).__name__}")


def _write_object(value: Mapping[str, Json], parts: list[bytes]) -> None:
    separator = b"{"
    for key in sorted(value, key=_key_order):
        parts.append(separator)
        parts.append(_text(key))
        parts.append(b":")
        _write(value[key], parts)
        separator = b","
    parts.append(b"}" if separator == b"," else b"{}")


def _key_order(key: str) -> bytes:
    """By UTF-16 code unit: an astral character sorts before U+FB01, though its code point is larger."""
    if not isinstance(key, str):
        raise ContractViolation(f"not JSON: a member's name is a {type(key).__name__}")
    return key.encode("utf-16-be", "surrogatepass")


def _text(value: str) -> bytes:
    """As JSON.stringify: everything raw but the quotes, the C0 controls and lone surrogates."""
    text = _encode_text(value)
    if _SURROGATE.search(text):
        # A pair that arrived as two escapes is one character; what is left over after joining is alone.
        text = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        text = _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    return text.encode()


def number_text(value: int | float) -> str:
    """A number as ECMAScript's Number::toString gives it: 1.0 is 1, -0 is 0, 1e21 is 1e+21, 1e-7 is 1e-7."""
    if isinstance(value, int) and -(2**53) <= value <= 2**53:
        return str(int(value))
    try:
        double = float(value)
    except OverflowError:
        return "null"  # beyond a double: Infinity, which JSON writes as null
    if not math.isfinite(double):
        return "null"
    if double == 0:
        return "0"
    sign = "-" if double < 0 else ""
    digits, point = _shortest(abs(double))
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    exponent = f"{'+' if point > 0 else '-'}{abs(point - 1)}"
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{sign}{mantissa}e{exponent}"


def _shortest(double: float) -> tuple[str, int]:
    """The shortest digits that round back to ``double``, and the place of the decimal point after the first digit 0."""
    mantissa, _, exponent = repr(double).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0)
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    return stripped.rstrip("0"), point


def effect_id(turn_id: str, segment: int, kind: str, identity: str) -> str:
    """``<turnId>:<segment>:<kind>:<identity>``: the name of one effect, stable over every replay of its segment."""
    return f"{turn_id}:{segment}:{kind}:{identity}"
