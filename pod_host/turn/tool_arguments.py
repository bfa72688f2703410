"""Arguments checked by the schema that a tool came with, before its call becomes an effect.

Such a schema is somebody else's: it may be broken, refer to what nobody fetches, or hold a regular expression that never
ends. A broken one checks nothing, and the log says so; regular expressions are left to whoever runs the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from pod_host.contract.base import Json, JsonObject
from pod_host.errors import InputIssue
from pod_host.turn.log import tell
from pod_host.turn.schemas import Schema, SchemaFault

_Keyword = Callable[[Any, Json, Json, JsonObject], Iterable[Any]]


def _no_faults(validator: Any, value: Json, instance: Json, schema: JsonObject) -> Iterable[Any]:
    return ()


def _without_patterns(keyword: _Keyword) -> _Keyword:
    """``keyword``, where no patterns decide which members it is about."""

    def check(validator: Any, value: Json, instance: Json, schema: JsonObject) -> Iterable[Any]:
        return () if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return check


_KEYWORDS: Final = Draft202012Validator.VALIDATORS
_Patternless: Final[Any] = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _no_faults,
        "patternProperties": _no_faults,
        "unevaluatedProperties": _no_faults,
        "additionalProperties": _without_patterns(_KEYWORDS["additionalProperties"]),
    },
)


def is_object_schema(schema: Json) -> bool:
    """Whether a tool with this ``inputSchema`` can be offered: a call's arguments are an object."""
    return isinstance(schema, dict) and schema.get("type") == "object"


class ArgumentCheck:
    """The ``check`` of the tool named ``tool``. Its schema is read at the first call."""

    def __init__(self, tool: str, schema: JsonObject) -> None:
        self._tool = tool
        self._given = schema
        self._schema: Schema | None = None
        self._broken = False

    def __call__(self, arguments: JsonObject) -> Sequence[InputIssue]:
        if self._broken:
            return ()
        try:
            if self._schema is None:
                self._schema = Schema(self._given, _Patternless)
            return self._schema.issues(arguments)
        except SchemaFault as fault:
            self._broken = True
            tell(logging.WARNING, "tool.schema_broken", tool=self._tool, why=str(fault))
            return ()
