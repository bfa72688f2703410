"""Arguments checked by the schema that a tool came with, before its call becomes an effect.

Such a schema is somebody else's: it may be broken, refer to what nobody fetches, or be made so that checking never ends. A
broken one checks nothing, and the log says so; regular expressions are left to whoever runs the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.errors import InputIssue
from pod_host.turn.linear import unique_items
from pod_host.turn.log import tell
from pod_host.turn.pieces import is_deep
from pod_host.turn.schemas import Schema, SchemaFault

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


def is_object_schema(schema: Json) -> bool:
    """Whether a tool with this ``inputSchema`` can be offered: a call's arguments are an object, and the schema is no
    deeper than whoever encodes it can take."""
    return isinstance(schema, dict) and schema.get("type") == "object" and not is_deep(schema, limits.SCHEMA_DEPTH)


class ArgumentCheck:
    """The ``check`` of the tool named ``tool``. Its schema is read at the first call."""

    def __init__(self, tool: str, schema: JsonObject) -> None:
        self._tool = tool
        self._given = schema
        self._schema: Schema | None = None
        self._broken = False

    def __call__(self, arguments: JsonObject) -> Sequence[InputIssue]:
        if is_deep(arguments, limits.RESULT_DEPTH):
            return [InputIssue(path=[], code="depth", message="nested too deeply")]
        if self._broken:
            return ()
        try:
            return self._issues(arguments)
        except Exception as fault:  # noqa: BLE001 - whatever a schema of somebody else's does, the call goes on
            self._broken = True
            tell(logging.WARNING, "tool.schema_broken", tool=self._tool, why=str(fault) or type(fault).__name__)
            return ()

    def _issues(self, arguments: JsonObject) -> Sequence[InputIssue]:
        if self._schema is None:
            self._schema = Schema(self._given, _Guarded)
        _LEFT.set([limits.SCHEMA_REFERENCES])
        issues = self._schema.issues(arguments)
        if [issue["code"] for issue in issues] == ["depth"]:  # not the arguments: they were looked at
            raise SchemaFault("it refers to itself without an end")
        return issues
