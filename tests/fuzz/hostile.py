"""JSON as somebody would send it who means harm: odd values, and good messages with members changed."""

from __future__ import annotations

import copy
import json
from typing import Any

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import is_small
from tests.fuzz.source import Source, pick

_INFINITE = float("inf")  # what 1e400 in a JSON text is read as
_PLAIN: tuple[Json, ...] = (None, True, False, 0, 1, -1, 7, "", "a", "text", {}, [], "/", "..", "0755", "2030-01-01")
_ODD: tuple[Json, ...] = (
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**70),
    10**400,
    -(10**4000),
    0.5,
    -0.0,
    5e-324,
    1.7e308,
    _INFINITE,
    -_INFINITE,
    "\0",
    "a\0b",
    "\ud800",
    "x\udfff\ud800y",
    "\U0001f600",
    "\u2028\x1b[2J\x9b2J\r\n",
    "9" * 5000,
    "../../outside",
    "/proc/self/environ",
    "a/" * 200,
    "x" * 513,
    "x" * 20_000,
    "=",
    "A=B\n",
    "null",
    "NaN",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "eyJ" + "e" * 30 + ".x.",
    "__proto__",
    "constructor",
    [[]],
    [None],
    {"": None},
    {"\ud800": "\udc00"},
    {"a": {"a": {"a": {}}}},
    [0] * 300,
)
_DEPTHS = (3, 60, 400, 1020)
_COPIED = 256 * 1024  # bytes that copies of one member may add: more would be slow, and show nothing new
_NODES = 400  # of a message that may be changed


def value(source: Source, depth: int = 3) -> Json:
    """Any JSON value."""
    kind = source.below(8)
    if kind < 3:
        return copy.deepcopy(pick(source, _PLAIN))
    if kind < 5:
        return copy.deepcopy(pick(source, _ODD))
    if kind == 5:
        return source.raw(24).decode("utf-8", "surrogateescape")
    if kind == 6 or depth == 0:
        return _deep(pick(source, _DEPTHS) if depth else 3, source.below(2) == 1)
    if source.below(2):
        return [value(source, depth - 1) for _ in range(source.below(4))]
    return {text(source): value(source, depth - 1) for _ in range(source.below(4))}


def text(source: Source) -> str:
    texts = [item for item in (*_PLAIN, *_ODD) if isinstance(item, str)]
    return pick(source, texts)


def _deep(levels: int, of_objects: bool) -> Json:
    nested: Json = 1
    for _ in range(levels):
        nested = {"a": nested} if of_objects else [nested]
    return nested


def mutated(source: Source, good: Json) -> Json:
    """``good`` with some of its members changed; often just as it is."""
    try:
        changed = copy.deepcopy(good)
    except RecursionError:
        return good  # odd enough
    for _ in range(source.below(5)):
        changed = _changed(source, changed)
    return changed


def json_text(source: Source, good: Json) -> str:
    """``good``, changed, as JSON text: now and then no JSON at all."""
    try:
        whole = json.dumps(mutated(source, good))
    except RecursionError:
        whole = "[" * 1100
    # As ECMAScript reads and writes what is larger than any number: JSON has no other word for it.
    whole = whole.replace("-Infinity", "-1e400").replace("Infinity", "1e400")
    match source.below(8):
        case 1:
            return whole[: source.below(len(whole) + 1)]
        case 2:
            return pick(source, ("[", '{"a":')) * pick(source, _DEPTHS)
        case 3:
            return source.raw(64).decode("latin-1")
        case _:
            return whole


def _changed(source: Source, whole: Json) -> Json:
    places = _places(whole)
    if not places or source.below(16) == 1:
        return value(source)
    holder, key = pick(source, places)
    match source.below(5):
        case 0:
            holder[key] = value(source)
        case 1:
            del holder[key]
        case 2 if isinstance(holder, dict):
            holder[text(source)] = value(source)
        case 3 if isinstance(holder, dict):
            holder[text(source)] = holder.pop(key)
        case _ if isinstance(holder, list):
            copies = pick(source, (1, 40))
            if is_small(holder[key], _COPIED // copies):
                holder.extend([holder[key]] * copies)
        case _:
            holder[key] = [holder[key]]
    return whole


def _places(whole: Json) -> list[tuple[Json, Any]]:
    """Every member of it and of what it holds, by its holder and its name; the first ones of a large value."""
    places: list[tuple[Json, Any]] = []
    waiting = [whole] if isinstance(whole, dict | list) else []
    while waiting and len(places) < _NODES:
        holder = waiting.pop()
        names: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))[:50]
        for name in names:
            places.append((holder, name))
            if isinstance(holder[name], dict | list) and holder[name]:
                waiting.append(holder[name])
    return places


def an_object(source: Source, good: JsonObject) -> JsonObject:
    """``good``, changed, but an object still."""
    changed = mutated(source, good)
    return changed if isinstance(changed, dict) else dict(good)
