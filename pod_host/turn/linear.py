"""Keywords of JSON Schema in time linear in the value: neither a schema nor an answer must be able to stop the host.

The engine for patterns is Rust's, by way of pydantic. It has no look-around and no back-references: a pattern with one of
those is not checked, and the log says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from pydantic_core import SchemaError, SchemaValidator, core_schema

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.turn.log import tell


@lru_cache(maxsize=256)
def _engine(pattern: str) -> SchemaValidator | None:
    """None for a pattern that the engine does not take."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        tell(logging.WARNING, "schema.pattern_unchecked", pattern=pattern[:80])
        return None


def found(pattern: str, text: str) -> bool:
    """Whether ``pattern`` is found anywhere in ``text``; one that cannot be checked is."""
    engine = _engine(pattern)
    return engine is None or bool(engine.isinstance_python(text))


def _is_pattern(value: object) -> bool:
    """Whether some engine takes it: what none does is a fault of the schema."""
    if not isinstance(value, str) or _engine(value) is not None:
        return True
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as fault:
        raise ValueError(str(fault)) from None
    return True


CHECKED_FORMATS: Final = FormatChecker(formats=())
CHECKED_FORMATS.checks("regex", raises=ValueError)(_is_pattern)
"""For the check of a schema itself: its patterns are patterns."""


def _pattern(validator: Any, pattern: str, instance: Json, schema: JsonObject) -> Iterable[ValidationError]:
    if isinstance(instance, str) and not found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: JsonObject, instance: Json, schema: JsonObject
) -> Iterable[ValidationError]:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for name, value in instance.items():
                if _engine(pattern) is not None and found(pattern, name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Json, instance: Json, schema: JsonObject
) -> Iterable[ValidationError]:
    if not isinstance(instance, dict):
        return
    patterns, named = schema.get("patternProperties", {}), schema.get("properties", {})
    for name, value in instance.items():
        if name in named or any(found(pattern, name) for pattern in patterns):
            continue
        if allowed is False:
            yield ValidationError(f"{name!r} was unexpected")
        elif isinstance(allowed, dict):
            yield from validator.descend(value, allowed, path=name)


def unique_items(validator: Any, wanted: Json, instance: Json, schema: JsonObject) -> Iterable[ValidationError]:
    """``uniqueItems``: the usual check compares each item with each."""
    if wanted is True and isinstance(instance, list) and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("the items are not all different")


_WITH_PATTERNS: Final[Any] = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": unique_items,
    },
)
_WITHOUT_UNEVALUATED: Final[Any] = extend(  # type: ignore[no-untyped-call]
    _WITH_PATTERNS, {"unevaluatedProperties": lambda validator, value, instance, schema: ()}
)


def linear_dialect(schema_text: bytes) -> Any:
    """The validator of Draft 2020-12 with these patterns, for a schema with this JSON text. ``unevaluatedProperties`` runs
    the patterns of ``patternProperties`` in its own way, so the two are not checked together."""
    return _WITHOUT_UNEVALUATED if b'"patternProperties"' in schema_text else _WITH_PATTERNS
