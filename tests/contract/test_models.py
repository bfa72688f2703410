"""Strict out, lenient in: what a harness may send, what it takes, and what never stands in a text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from pod_host import limits
from pod_host.contract.base import Empty, is_harness_id
from pod_host.contract.effects import (
    IntentParams,
    IntentResult,
    OutcomeParams,
    ToolCompleted,
    ToolIntent,
    tool_failure,
)
from pod_host.contract.hosting import HostJoinAnswer, HostJoinRequest
from pod_host.contract.methods import CORE_ASKS, HARNESS_ASKS
from pod_host.contract.model_call import ModelCandidate, ModelFailure, ToolGateAnswer
from pod_host.contract.output import Thrown, TurnOutput, method_of
from pod_host.contract.transcript import TranscriptUpdate
from pod_host.contract.turn_start import HarnessLimits, TurnStart
from pod_host.contract.work import Cancel, EventParams, HelloParams, HelloResult, ReleaseParams, RenewResult, RunGrant
from pod_host.errors import ContractViolation
from tests.contract.values import nested

HASH = "ab" * 32
TOOL = {
    "effectId": "t:0:tool:x",
    "sessionId": "s",
    "turnId": "t",
    "agentId": "a",
    "manifestHash": "m",
    "kind": "tool",
    "toolName": "bash",
    "target": {"kind": "sandbox"},
    "input": {"command": "ls"},
    "context": {"callId": "c", "invocationId": "i"},
}
START = {
    "type": "turn.start",
    "manifest": {"id": "coder"},
    "checkpoint": {"sessionId": "s", "turnId": "t", "segment": 0, "manifestHash": "m", "input": "hi"},
}


# --- What a harness sends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("hello", {"api": 5, "name": "pod-host", "version": "1", "features": {"workspace": True}}),
        ("lease", {}),
        ("lease.release", {"runId": "r", "reason": "shutdown"}),
        ("effect.intent", {"runId": "r", "effect": TOOL, "requestHash": HASH}),
        ("effect.outcome", {"runId": "r", "effectId": "e", "value": None}),
        ("effect.outcome", {"runId": "r", "effectId": "e", "error": "unknown"}),
        ("event", {"sessionId": "s", "turnId": None, "type": "sandbox.exec", "payload": {"n": None}}),
        ("definition.file", {"runId": "r", "sha256": f"sha256:{HASH}", "offset": 0}),
        ("artifact.write", {"runId": "r", "op": "begin", "key": "k", "name": "n", "base64": ""}),
        ("artifact.write", {"runId": "r", "op": "commit", "uploadId": "u"}),
        ("turn.completed", {"runId": "r", "status": "completed", "output": None, "state": None}),
        ("turn.failed", {"runId": "r", "thrown": {"message": "oops"}}),
        ("checkpoint", {"runId": "r", "transcript": [{"keep": 0, "entries": [], "length": 0}]}),
    ],
)
def test_params_cross_as_they_are_and_nothing_is_added(method: str, params: dict[str, Any]) -> None:
    assert HARNESS_ASKS[method].read_params(params).wire() == params
    with pytest.raises(ContractViolation, match=rf'^Invalid {method} request: Unrecognized key: "extra"'):
        HARNESS_ASKS[method].read_params({**params, "extra": 1})


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("hello", {"api": 4, "name": "pod-host", "version": "1", "features": {}}),
        ("hello", {"api": 5, "name": "Pod", "version": "1", "features": {}}),
        ("hello", {"api": 5, "name": "pod-host\n", "version": "1", "features": {}}),
        ("lease.renew", {"runId": "x" * 513}),
        ("lease.release", {"runId": "r", "reason": "cancel"}),
        ("effect.intent", {"runId": "r", "effect": TOOL, "requestHash": HASH.upper()}),
        ("effect.intent", {"runId": "r", "effect": {**TOOL, "capabilityId": "c"}, "requestHash": HASH}),
        (
            "effect.intent",
            {"runId": "r", "effect": {**TOOL, "target": {"kind": "sandbox", "x": 1}}, "requestHash": HASH},
        ),
        ("effect.intent", {"runId": "r", "effect": {**TOOL, "kind": "delegation"}, "requestHash": HASH}),
        ("effect.outcome", {"runId": "r", "effectId": "e"}),
        ("effect.outcome", {"runId": "r", "effectId": "e", "value": 1, "error": "x"}),
        ("effect.outcome", {"runId": "r", "effectId": "e", "error": None}),
        ("event", {"runId": None, "sessionId": "s", "turnId": None, "type": "sandbox.exec", "payload": {}}),
        ("event", {"sessionId": "s", "type": "sandbox.exec", "payload": {}}),
        ("definition.file", {"runId": "r", "sha256": HASH}),
        ("checkpoint", {"runId": "r", "transcript": [{"keep": 0.5, "entries": [], "length": 0}]}),
        ("turn.failed", {"runId": "r", "error": {"code": "", "message": "m"}}),
    ],
)
def test_params_that_v5_refuses_are_refused(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(ContractViolation, match=f"^Invalid {method} request: "):
        HARNESS_ASKS[method].read_params(params)


def test_our_own_members_are_checked_when_a_model_is_built() -> None:
    with pytest.raises(ValidationError, match="leave an absent member out"):
        ReleaseParams.model_validate({"runId": None, "reason": "shutdown"})
    with pytest.raises(ValidationError):
        HelloParams(api=5, name="pod-host", version="1", features={}, extra=1)  # type: ignore[call-arg]


def test_wire_gives_what_was_set_and_no_null_for_absence() -> None:
    assert Empty().wire() == {}
    assert TurnOutput(run_id="r", status="failed").wire() == {"runId": "r", "status": "failed"}
    assert OutcomeParams(run_id="r", effect_id="e", value=None).wire() == {"runId": "r", "effectId": "e", "value": None}
    update = TranscriptUpdate(keep=0, entries=[{"kind": "input", "text": None}], length=1)
    assert TurnOutput(run_id="r", status="completed", transcript=[update], thrown=Thrown(message="m")).wire() == {
        "runId": "r",
        "status": "completed",
        "transcript": [{"keep": 0, "entries": [{"kind": "input", "text": None}], "length": 1}],
        "thrown": {"message": "m"},
    }
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    assert (
        RenewResult(ok=True, token="t", token_expires_at=at).wire()["tokenExpiresAt"] == "2026-01-02T03:04:05.678000Z"
    )


def test_json_inside_a_model_crosses_as_it_is() -> None:
    """Deeper than pydantic's own dump goes, not UTF-8, and without a copy."""
    for value in (nested(500), {"\ud83d": "\udcff"}, ["x"] * 10):
        assert OutcomeParams(run_id="r", effect_id="e", value=value).wire()["value"] is value
    assert tool_failure("fs.missing", "a\udcff")["message"] == "a\udcff"


def test_every_output_has_its_method() -> None:
    assert method_of(TurnOutput(run_id="r", status="cancelled")) == "turn.failed"
    assert method_of(TurnOutput(run_id="r", status="yielded")) == "checkpoint"
    assert method_of(TurnOutput(run_id="r", thrown=Thrown(message="m"))) == "turn.failed"


@pytest.mark.parametrize("name", ["pod-host", "ab", "a" + "-" * 62])
def test_harness_ids(name: str) -> None:
    assert is_harness_id(name)


@pytest.mark.parametrize("name", ["", "a", "A-b", "1ab", "pod_host", "a" * 64, "ab\n", None, 5])
def test_what_is_no_harness_id(name: object) -> None:
    assert not is_harness_id(name)


def test_a_refused_target_or_shape_is_never_built() -> None:
    intent = ToolIntent.read(TOOL)
    assert IntentParams(run_id="r", effect=intent, request_hash=HASH).wire()["effect"] == TOOL
    with pytest.raises(ContractViolation, match="Invalid ToolIntent"):
        ToolIntent.read({**TOOL, "target": {"kind": "runtime", "operation": "format_disk"}})
    with pytest.raises(ValidationError):
        ToolCompleted(kind="completed")


# --- What a harness takes ------------------------------------------------------------------------------------------------


def test_unknown_members_go_and_a_null_counts_as_absent() -> None:
    grant = RunGrant.read(
        {"runId": "r", "sessionId": "s", "turnId": "t", "epoch": 0, "token": None, "tokenExpiresAt": None, "new": {}}
    )
    assert grant.wire() == {"runId": "r", "sessionId": "s", "turnId": "t", "epoch": 0}
    assert Cancel.read({"runId": "r", "reason": "cancel", "message": None, "new": 1}).message is None
    hello = HelloResult.read({"api": 5, "tenantId": "t", "sandbox": {"backend": None}, "renewEveryMs": 10000})
    assert (hello.sandbox.backend, hello.renew_every_ms) == (None, 10000)
    intent = IntentResult.read({"status": "execute", "rejoin": None, "later": []})
    assert (intent.rejoin, intent.traceparent, intent.outcome) == (False, None, None)


def test_a_turn_needs_little_and_the_limits_have_their_defaults() -> None:
    start = TurnStart.read(START)
    assert start.checkpoint.input == "hi"
    assert (start.outcomes, start.transcript.cursor, start.memory, start.agent) == ([], -1, None, None)
    assert start.limits == HarnessLimits()
    assert start.limits.record_entry_bytes == limits.RECORD_ENTRY_BYTES
    narrowed = TurnStart.read({**START, "limits": {"recordEntryBytes": 1000, "unheardOf": 5, "chunkBytes": None}})
    assert (narrowed.limits.record_entry_bytes, narrowed.limits.chunk_bytes) == (1000, limits.CHUNK_BYTES)


@pytest.mark.parametrize("index", ["- /a\n- /b", ["- /a", "- /b"]])
def test_a_memory_index_is_a_text_or_its_lines(index: Any) -> None:
    start = TurnStart.read({**START, "memory": {"access": "read_write", "index": index}})
    assert start.memory is not None
    assert start.memory.index == "- /a\n- /b"


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ({**START, "checkpoint": {"sessionId": "s"}}, "checkpoint.turnId"),
        ({**START, "manifest": []}, "manifest"),
        ({**START, "limits": {"chunkBytes": 0}}, "limits.chunkBytes"),
        ([], "Invalid TurnStart"),
    ],
)
def test_a_turn_that_cannot_be_read_names_its_member(start: Any, told: str) -> None:
    with pytest.raises(ContractViolation, match=told):
        TurnStart.read(start)


def test_a_model_answer_keeps_its_blocks_as_they_came() -> None:
    block = {"type": "reasoning", "text": "…", "providerMetadata": {"x": None}}
    candidate = ModelCandidate.read(
        {"output": [block], "usage": {"inputTokens": 3, "later": 1}, "evidence": {"a": None}}
    )
    assert candidate.output == [block]
    assert candidate.usage is not None
    assert candidate.usage.input_tokens == 3
    failure = ModelFailure.read({"kind": "failed", "code": "rate_limited", "retryAfterMs": 1500})
    assert (failure.retryable, failure.retry_after_ms) == (False, 1500)
    assert ToolGateAnswer.read({"ok": True, "result": None, "redacted": 2}).result is None


def test_methods_of_both_ends() -> None:
    assert set(CORE_ASKS) == {f"workspace.{name}" for name in ("read", "write", "exec", "report", "sweep", "remove")}
    assert len(HARNESS_ASKS) == 17
    with pytest.raises(ContractViolation, match=r"^Invalid lease\.release answer"):
        HARNESS_ASKS["lease.release"].read_result(None)


# --- Joining -------------------------------------------------------------------------------------------------------------

JOINED = {
    "hostToken": "h",
    "egressToken": "e",
    "sandboxId": "s",
    "epoch": 1,
    "expiresAt": "2026-01-01T00:00:00Z",
    "caCertificate": "PEM",
}


@pytest.mark.parametrize(
    "member",
    [{"pod_uid": "a b"}, {"pod_uid": "x" * 65}, {"volume_id": ""}, {"join_token": ""}, {"join_token": "x" * 513}],
)
def test_a_join_request_that_the_runtime_would_refuse_is_not_built(member: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        HostJoinRequest(**{"sandbox_id": "s", "pod_uid": "u", "join_token": "t", **member})


@pytest.mark.parametrize(
    "member",
    [
        {"epoch": 0},
        {"hostToken": ""},
        {"hostToken": "a b"},
        {"egressToken": "a\r\nb"},
        {"expiresAt": "soon"},
        {"sandboxId": None},
    ],
)
def test_a_join_answer_that_cannot_be_used_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(ContractViolation, match=f"Invalid HostJoinAnswer: {next(iter(member))}"):
        HostJoinAnswer.read({**JOINED, **member})


def test_a_moment_without_a_zone_is_utc() -> None:
    """Else it could not be compared with a clock."""
    assert HostJoinAnswer.read({**JOINED, "expiresAt": "2026-01-01T00:00:00"}).expires_at == datetime(
        2026, 1, 1, tzinfo=UTC
    )
    assert HostJoinAnswer.read(JOINED).expires_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_no_token_stands_in_a_repr() -> None:
    secret = "very-secret"
    for model in (
        HostJoinRequest(sandbox_id="s", pod_uid="u", join_token=secret),
        HostJoinAnswer.read({**JOINED, "hostToken": secret, "egressToken": secret}),
        RunGrant(run_id="r", session_id="s", turn_id="t", epoch=1, token=secret),
        RenewResult(ok=True, token=secret),
    ):
        assert secret not in repr(model)
        assert secret not in str(model)


def test_an_event_outside_a_turn_has_a_null_turn() -> None:
    event = EventParams(session_id="s", turn_id=None, type="sandbox.state", payload={})
    assert event.wire() == {"sessionId": "s", "turnId": None, "type": "sandbox.state", "payload": {}}
