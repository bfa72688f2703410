# ruff: noqa: PT017 - what is said of a refusal is a property here
"""What models and tools answered, read on its own: candidates, MCP results, gates over HTTP."""

from __future__ import annotations

import httpx

from pod_host.client import Gates
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.encoding import decode, encode
from pod_host.contract.model_call import MODEL_CALLS_PATH
from pod_host.errors import ContractViolation, GateRefusal, GateUnavailable
from pod_host.turn.candidates import read_candidate, unusable
from pod_host.turn.journal import Again, Known, Unknown
from pod_host.turn.mcp_results import mcp_fate
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source, pick
from tests.turn.double import calls

_CANDIDATE = {
    **calls(("bash", {"command": "ls"}), before="First."),
    "evidence": {"provider": "p"},
    "usage": {"inputTokens": 1, "costUsd": 0.5},
}
_RESULTS = (
    {"ok": True, "result": {"content": [{"type": "text", "text": "x"}, {"type": "image"}], "isError": False}},
    {"ok": True, "result": {"content": [{"type": "text", "text": "x"}], "isError": True}},
    {"ok": True, "result": {"structuredContent": {"a": 1}, "content": [{"type": "audio"}]}, "redacted": ["x"]},
    {"ok": False, "error": {"code": "c", "message": "m", "uncertain": True}},
    {"ok": False, "error": {"failure": {"code": "mcp.lost", "message": "m", "retryable": True, "server": "s"}}},
)  # fmt: skip
_STATUSES = (200, 204, 400, 409, 429, 500)


def run(source: Source) -> None:
    part = source.below(3)
    if part == 2:
        loop.run(_gate(source))
        return
    try:
        value = decode(hostile.json_text(source, pick(source, _RESULTS) if part else _CANDIDATE))
    except ContractViolation:
        return
    if part == 0:
        _candidate(value, may_be_silent=source.below(2) == 1)
    elif isinstance(value, dict):
        _mcp(value, repeatable=source.below(2) == 1, asked=1 + source.below(2))


def _candidate(value: Json, *, may_be_silent: bool) -> None:
    candidate = read_candidate(value)
    if candidate is None:
        return
    unusable(candidate, may_be_silent=may_be_silent)
    for call in candidate.calls:
        call.id.encode()
        call.name.encode()


def _mcp(value: JsonObject, *, repeatable: bool, asked: int) -> None:
    match mcp_fate(value, repeatable=repeatable, asked=asked):
        case Known(known):
            assert known["kind"] in ("completed", "failed")
            _can_cross(known)
        case Unknown(message):
            assert isinstance(message, str)
        case fate:
            assert isinstance(fate, Again)


def _can_cross(value: Json) -> None:
    try:
        assert len(encode(value)) < 10_000_000
        canonical(value)
    except ContractViolation as fault:
        assert "nested too deeply" in str(fault)


async def _gate(source: Source) -> None:
    gates = Gates("http://runtime.test", None)
    await gates._client.aclose()

    def answer(request: httpx.Request) -> httpx.Response:
        body = hostile.json_text(
            source, {"outcome": _CANDIDATE} if source.below(2) else {"error": {"code": "c", "message": "m"}}
        )
        return httpx.Response(pick(source, _STATUSES), content=body.encode("utf-8", "surrogatepass"))

    gates._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    try:
        got = await gates.call(MODEL_CALLS_PATH, b"{}", key="k", token=lambda: "run-token-0123456789")
        assert isinstance(got, dict)
    except (GateRefusal, GateUnavailable) as refusal:
        assert len(str(refusal)) < 1000, "a gate's words are cut"
    finally:
        await gates.close()
