"""hello, lease, renew, release, cancel, event (Harness API v5, sections 2, 8 and 10)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pod_host.contract.base import Count, Id, Json, JsonObject, Moment, Received, Sent, Text1

ReleaseReason = Literal["shutdown", "ownership.lost", "connection.lost"]
EventKind = Literal["sandbox.state", "sandbox.exec", "artifact.export.skipped", "artifact.export.failed"]
CancelReason = Literal["cancel", "shutdown", "deadline", "ownership.lost"]


class HelloParams(Sent):
    """The first request. ``features`` is open in v5's text: see `open_points.FEATURE_FORMS`."""

    api: Literal[5]
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,62}$")]
    version: Text1
    features: JsonObject


class SandboxBackend(Received):
    backend: str | None = None


class HelloResult(Received):
    """``renew_every_ms``: milliseconds between two ``lease.renew`` of a run."""

    api: int
    tenant_id: str = ""
    sandbox: SandboxBackend = SandboxBackend()
    renew_every_ms: Annotated[int, Field(gt=0)]


class RunGrant(Received):
    """One leased run. ``epoch`` is the session lease's, not the host's. ``token`` is the run token for the gates."""

    run_id: Id
    session_id: Id
    turn_id: Id
    epoch: Count
    token: str | None = Field(default=None, repr=False)
    token_expires_at: Moment | None = None


class LeaseResult(Received):
    """``input`` is a `TurnStart`, read on its own: one that cannot be read must not cost the grant, which is needed to say
    so."""

    run: RunGrant
    input: Json = None


class RunParams(Sent):
    """``{runId}``: lease.renew and transcript.read."""

    run_id: Id


class RenewResult(Received):
    """``ok`` false: the run is over. A ``token`` replaces the run token from now on."""

    ok: bool
    token: str | None = Field(default=None, repr=False)
    token_expires_at: Moment | None = None


class ReleaseParams(Sent):
    run_id: Id
    reason: ReleaseReason


class Cancel(Received):
    """The one message that core sends: ``cancel`` (section 8)."""

    run_id: Id
    reason: CancelReason
    message: str | None = None


class EventParams(Sent):
    """A claim for the log: ``sandbox.state``, ``sandbox.exec``, ``artifact.export.skipped``, ``artifact.export.failed``.

    ``turn_id`` is null outside a turn: the one member of the contract that is present and null."""

    any_json: ClassVar[frozenset[str]] = frozenset({"turnId", "turn_id"})
    run_id: Id | None = None
    session_id: Id
    turn_id: Id | None
    type: EventKind
    payload: JsonObject
    record: JsonObject | None = None


def event_params(
    kind: EventKind, payload: JsonObject, *, session_id: str, turn_id: str | None, run_id: str | None
) -> JsonObject:
    """`EventParams` on the wire, of ids that were read before: made beside every call, it is not checked again."""
    run = {} if run_id is None else {"runId": run_id}
    return {**run, "sessionId": session_id, "turnId": turn_id, "type": kind, "payload": payload}


class DefinitionFileParams(Sent):
    """A range of a file that the run's manifest names (section 3, Skills)."""

    run_id: Id
    sha256: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    offset: Count | None = None
    length: Count | None = None


class SessionMcpParams(Sent):
    """What the session's MCP servers listed (section 3, ``mcp``). ``snapshot`` is open: `open_points`."""

    run_id: Id
    snapshot: JsonObject | None = None
    diagnostics: list[JsonObject]


class SessionMcpResult(Received):
    mcp: Json = None
