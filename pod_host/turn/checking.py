"""JSON Schemas at arm's length: what is needed of them before one is used. The library behind `turn.schemas` would be a
tenth of a host's start, and many a host never checks anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pod_host.contract.base import Json, JsonObject
from pod_host.errors import InputIssue, PodHostError

if TYPE_CHECKING:
    from pod_host.turn.schemas import Schema


class SchemaFault(PodHostError):
    """The schema itself is none, or refers to what it does not hold."""

    code = "schema"


class OwnSchema:
    """The schema of a tool of ours, which is sound: it is read when it is first used."""

    def __init__(self, schema: JsonObject) -> None:
        self._given = schema
        self._schema: Schema | None = None

    def issues(self, value: Json) -> list[InputIssue]:
        """As `turn.schemas.Schema.issues`."""
        if self._schema is None:
            from pod_host.turn.schemas import Schema

            self._schema = Schema(self._given)
        return self._schema.issues(value)


def pointer(path: Sequence[str | int]) -> str:
    """A place in a value, for people and models: ``/items/0/name``; ``/`` is the whole."""
    return "/" + "/".join(str(part) for part in path)
