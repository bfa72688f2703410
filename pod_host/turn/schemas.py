"""JSON Schema, Draft 2020-12, as a turn uses it. Nothing is ever fetched, and the same value has the same faults in the same
words, whatever order its members came in: the words reach the model, so they are part of later calls' hashes."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from pod_host.contract.base import Json
from pod_host.contract.canonical import canonical
from pod_host.contract.encoding import decode
from pod_host.errors import ContractViolation, InputIssue
from pod_host.turn.checking import SchemaFault, pointer
from pod_host.turn.linear import CHECKED_FORMATS, linear_dialect
from pod_host.turn.text import readable

_ISSUES: Final = 20  # looked for in one value
_MESSAGE_CHARACTERS: Final = 300


class Schema:
    """One schema, checked when it is made. Raises SchemaFault, whose text names the place at fault. ``dialect``: the
    validator of its keywords; None: all of them, its patterns in linear time."""

    def __init__(self, schema: Json, dialect: Any = None) -> None:
        try:
            text = canonical(schema)
            ordered = decode(text)
            Draft202012Validator.check_schema(ordered, format_checker=CHECKED_FORMATS)
        except SchemaError as fault:
            raise SchemaFault(f"{pointer(list(fault.path))}: {_shown(fault.message)}") from None
        except (ContractViolation, RecursionError):
            raise SchemaFault("nested too deeply") from None
        # An empty registry retrieves nothing: only what the schema itself holds can be referred to.
        registry: Registry[Json] = Registry()
        whole = DRAFT202012.create_resource(ordered)
        try:
            _follow(registry.resolver_with_root(whole), whole)
        except Unresolvable as fault:
            raise _leads_nowhere(fault) from None
        self._validator: Any = (dialect or linear_dialect(text))(ordered, registry=registry)

    def issues(self, value: Json) -> list[InputIssue]:
        """What in ``value`` does not fit, the first few of it. Raises SchemaFault for a reference behind a reference that
        leads nowhere: the others were followed before."""
        try:
            faults = list(islice(self._validator.iter_errors(decode(canonical(value))), _ISSUES))
        except Unresolvable as fault:
            raise _leads_nowhere(fault) from None
        except (ContractViolation, RecursionError):
            return [InputIssue(path=[], code="depth", message="nested too deeply")]
        return [
            InputIssue(path=list(fault.absolute_path), code=str(fault.validator), message=_shown(fault.message))
            for fault in faults
        ]


def _leads_nowhere(fault: Unresolvable) -> SchemaFault:
    return SchemaFault(f"$ref {fault.ref!r} is not in the schema, and nothing is fetched")


def _follow(resolver: Any, schema: Resource[Json]) -> None:
    """Every reference of ``schema``, and of the schemas in it. Raises Unresolvable for one that leads nowhere."""
    contents = schema.contents
    if isinstance(contents, dict):
        for name in ("$ref", "$dynamicRef"):
            if isinstance(contents.get(name), str):
                resolver.lookup(contents[name])
    for part in schema.subresources():
        _follow(resolver.in_subresource(part), part)


def _shown(message: str) -> str:
    message = readable(message)
    return message if len(message) <= _MESSAGE_CHARACTERS else message[:_MESSAGE_CHARACTERS] + "…"
