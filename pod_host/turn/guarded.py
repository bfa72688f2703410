"""A tool's own schema, with what could make its check go on for ever taken out or counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.errors import InputIssue
from pod_host.turn.checking import SchemaFault
from pod_host.turn.linear import unique_items
from pod_host.turn.schemas import Schema

_Keyword = Callable[[Any, Json, Json, JsonObject], Iterable[Any]]
_LEFT: ContextVar[list[int]] = ContextVar("references_left")
"""How many references the check that runs may still follow: a few of them in a row can stand for billions."""


def _no_faults(validator: Any, value: Json, instance: Json, schema: JsonObject) -> Iterable[Any]:
    return ()


def _without_patterns(keyword: _Keyword) -> _Keyword:
    """``keyword``, where no patterns decide which members it is about."""

    def check(validator: Any, value: Json, instance: Json, schema: JsonObject) -> Iterable[Any]:
        return () if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return check


def _counted(keyword: _Keyword) -> _Keyword:
    def check(validator: Any, value: Json, instance: Json, schema: JsonObject) -> Iterable[Any]:
        left = _LEFT.get()
        left[0] -= 1
        if left[0] < 0:
            raise SchemaFault("its references go round without an end")
        return keyword(validator, value, instance, schema)

    return check


_KEYWORDS: Final = Draft202012Validator.VALIDATORS
_Guarded: Final[Any] = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _no_faults,
        "patternProperties": _no_faults,
        "unevaluatedProperties": _no_faults,
        "additionalProperties": _without_patterns(_KEYWORDS["additionalProperties"]),
        "uniqueItems": unique_items,
        "$ref": _counted(_KEYWORDS["$ref"]),
        "$dynamicRef": _counted(_KEYWORDS["$dynamicRef"]),
    },
)


class Guarded:
    """Raises SchemaFault when it is made of what is no schema."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = Schema(schema, _Guarded)

    def issues(self, arguments: JsonObject) -> Sequence[InputIssue]:
        """Raises SchemaFault for a schema that refers to itself, or further, without an end."""
        _LEFT.set([limits.SCHEMA_REFERENCES])
        issues = self._schema.issues(arguments)
        if [issue["code"] for issue in issues] == ["depth"]:  # not the arguments: whoever asks looked at them
            raise SchemaFault("it refers to itself without an end")
        return issues
