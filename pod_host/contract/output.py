"""The output of a segment: exactly one request ends it (Harness API v5, section 7)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pod_host.contract.base import Id, Json, Received, Sent, Text1
from pod_host.contract.transcript import TranscriptUpdate

OutputStatus = Literal["completed", "failed", "cancelled", "waiting", "uncertain", "yielded", "paused"]

OUTPUT_METHODS: dict[str, str] = {
    "completed": "turn.completed",
    "failed": "turn.failed",
    "cancelled": "turn.failed",
    "waiting": "turn.waiting",
    "uncertain": "turn.waiting",
    "yielded": "checkpoint",
    "paused": "turn.paused",
}


class TurnError(Sent):
    code: Text1
    message: str


class Thrown(Sent):
    """A loop that threw, rather than ended."""

    code: Text1 | None = None
    message: str


class TurnOutput(Sent):
    any_json: ClassVar[frozenset[str]] = frozenset({"state", "output", "pending"})
    run_id: Id
    status: OutputStatus | None = None
    state: Json = None
    output: Json = None
    pending: Json = None
    error: TurnError | None = None
    effect_ids: list[Id] | None = None
    cancel_effect_ids: list[Id] | None = None
    transcript: list[TranscriptUpdate] | None = None
    thrown: Thrown | None = None


class OutputResult(Received):
    cursor: int | None = None


def method_of(output: TurnOutput) -> str:
    """The request that carries ``output``: by its status, ``turn.failed`` for a loop that threw."""
    return OUTPUT_METHODS[output.status] if output.status else "turn.failed"
