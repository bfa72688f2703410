"""A whole turn, against a Runtime and gates that answer as they like: it ends, and what it sends is by the contract."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pod_host.client import Claim, Room
from pod_host.contract.base import Json, JsonObject, Sent
from pod_host.contract.encoding import decode, encode
from pod_host.contract.frames import HARNESS_ERROR_CODES
from pod_host.contract.methods import HARNESS_ASKS
from pod_host.contract.model_call import HTTP_CALLS_PATH, MCP_CONNECT_PATH, MCP_LIST_PATH, MODEL_CALLS_PATH
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import RenewResult, RunGrant
from pod_host.errors import ContractViolation, GateRefusal, GateUnavailable, RuntimeRefusal
from pod_host.sandbox.outcomes import Completed, Failed, Outcome
from pod_host.turn import FileCache, Released, Reported, Turn
from pod_host.turn.transcripts import TranscriptCache
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source, pick
from tests.fuzz.targets import turn_start
from tests.turn.double import calls, text
from tests.turn.sandbox_double import Sandbox

_STEPS = 4  # answers with calls in them, before the model is done
_REQUESTS = 2000  # of one turn, whatever it is told
_CALLS = (
    ("bash", {"command": "ls", "timeout": 5}),
    ("weather", {"city": "Ulm"}),
    ("github__search", {"q": "x"}),
    ("helper", {"message": "help"}),
    ("named", {"message": "help"}),
    ("skill", {"name": "s"}),
    ("tool_search", {"query": "x"}),
    ("schedule_wake", {"in": "90s", "message": "wake"}),
    ("memory_write", {"path": "a", "content": "b"}),
    ("artifact_read", {"artifactId": "a"}),
)
_ENTRIES: list[JsonObject] = [
    {"kind": "input", "turnId": "t0", "event": {"kind": "user-message", "text": "Earlier"}},
    {"kind": "candidate", "turnId": "t0", "stepId": "t0.step-1", "candidate": calls(("bash", {"command": "ls"}))},
    {"kind": "tool-results", "turnId": "t0", "stepId": "t0.step-1", "results": [
        {"callId": "c0", "toolName": "bash", "kind": "completed", "output": {"exitCode": 0}}]},
    {"kind": "final", "turnId": "t0", "stepId": "t0.step-2", "output": "Done."},
]  # fmt: skip
_TOOL_ANSWERS = (
    {"ok": True, "result": {"content": [{"type": "text", "text": "x"}, {"type": "image", "mimeType": "image/png"}]}},
    {"ok": True, "result": {"kind": "completed", "output": {"a": 1}}},
    {"ok": True, "result": {"kind": "failed", "code": "c", "message": "m", "retryable": True}},
    {"ok": True, "result": {"structuredContent": {"a": 1}, "content": []}, "redacted": ["x"]},
    {"ok": False, "error": {"code": "c", "message": "m", "uncertain": True, "failure": {"code": "mcp.lost", "message": "m"}}},
)  # fmt: skip


class Runtime:
    """Core and the gates. Both check what they are sent, as the real ones do, and answer with whatever ``source`` says."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asked = 0
        self._said = 0
        self.ends: list[JsonObject] = []
        self.token = "token"
        self.grant = RunGrant(
            run_id="run_1",
            session_id="ses_1",
            turn_id="turn_1",
            epoch=1,
            token="token",
            token_expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        )

    # --- RunPort --------------------------------------------------------------------------------------------------------

    async def request(self, method: str, params: Sent) -> Any:
        self._count()
        wire = decode(encode(params.wire()))
        HARNESS_ASKS[method].read_params(wire)
        if self._source.below(24) == 1:
            raise RuntimeRefusal(pick(self._source, sorted(HARNESS_ERROR_CODES)), hostile.text(self._source))
        if method.startswith("turn.") or method == "checkpoint":
            self.ends.append(wire)
        try:
            return HARNESS_ASKS[method].read_result(self._mutated(self._answer(method, wire)))
        except ContractViolation as fault:
            raise RuntimeRefusal("invalid", str(fault)) from None

    async def renew(self) -> RenewResult:
        self._count()
        if self._source.below(4) == 1:
            raise RuntimeRefusal(pick(self._source, sorted(HARNESS_ERROR_CODES)), hostile.text(self._source))
        self.token = hostile.text(self._source)
        return RenewResult(ok=self._source.below(2) == 1)

    def _answer(self, method: str, params: JsonObject) -> Json:
        match method:
            case "transcript.read":
                return {"cursor": 2, "entries": _ENTRIES}
            case "effect.intent" if params["effect"].get("target", {}).get("kind") == "runtime":
                return {"status": "completed", "outcome": {"value": {"kind": "completed", "output": "by core"}}}
            case "effect.intent":
                return {"status": "execute", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
            case "effect.outcome" if "value" in params:
                return {"status": "completed", "outcome": {"value": params["value"]}}
            case "effect.outcome":
                return {"status": "uncertain"}
            case "definition.file":
                return {"base64": "YWJj", "size": 3, "eof": True}
            case "session.mcp":
                return {"mcp": turn_start.GOOD["mcp"]}
            case "artifact.read":
                return {
                    "artifactId": "a",
                    "version": 1,
                    "name": "a.txt",
                    "mediaType": "text/plain",
                    "base64": "YWJj",
                    "size": 3,
                }
            case _:
                return {"cursor": 3}

    # --- GatePort -------------------------------------------------------------------------------------------------------

    def claim(self) -> Claim:
        return Room(1).claim()

    async def call(
        self,
        path: str,
        body: bytes,
        *,
        key: str,
        token: Callable[[], str],
        traceparent: str | None = None,
        claim: Claim | None = None,
    ) -> JsonObject:
        self._count()
        asked = decode(body)
        match self._source.below(24):
            case 1:
                raise GateRefusal(409, hostile.text(self._source), "no")
            case 2:
                raise GateUnavailable("lost")
        answer: JsonObject
        if path == MODEL_CALLS_PATH:
            answer = {"outcome": self._model(asked)}
        elif path == MCP_CONNECT_PATH:
            answer = {"ok": True, "result": {"instructions": "i"}}
        elif path == MCP_LIST_PATH:
            tools = [{"name": "search", "inputSchema": {"type": "object"}}]
            answer = {"ok": True, "result": {"tools": tools, "nextCursor": "1" if self._source.below(4) == 1 else None}}
        else:
            answer = pick(self._source, _TOOL_ANSWERS[1:3] if path == HTTP_CALLS_PATH else _TOOL_ANSWERS)
        changed = self._mutated(answer)
        return changed if isinstance(changed, dict) else {}

    async def cancel(self, path: str, *, key: str, token: Callable[[], str]) -> None:
        self._count()

    def _model(self, asked: JsonObject) -> Json:
        self._said += 1
        if self._said > _STEPS:
            return text("Done.")
        named = [pick(self._source, _CALLS) for _ in range(1 + self._source.below(3))]
        return calls(*((name, self._mutated(arguments)) for name, arguments in named))

    # ---

    def work(self, tool: str, arguments: JsonObject) -> Outcome:
        """The sandbox. Its worker is ours, so its answers have their shape."""
        if self._source.below(4) == 1:
            return Failed("sandbox.not_found", "No such file")
        output = {"stdout": hostile.text(self._source), "stderr": "", "exitCode": 0}
        return Completed(output if tool == "bash" else {"text": "x"})

    def _mutated(self, answer: Json) -> Json:
        if self._source.below(4) != 1:
            return answer
        try:
            return decode(encode(hostile.mutated(self._source, answer)))
        except ContractViolation:
            return answer

    def _count(self) -> None:
        self._asked += 1
        assert self._asked < _REQUESTS, "the turn does not end"


def run(source: Source) -> None:
    start = turn_start.read(source)
    if start is not None:
        with loop.no_bugs():
            loop.run(_turn(source, start))


async def _turn(source: Source, start: TurnStart) -> None:
    runtime = Runtime(source)
    ending = await Turn(
        run=runtime,
        start=start,
        gates=runtime,
        sandbox=Sandbox(runtime.work) if source.below(4) != 1 else None,
        transcripts=TranscriptCache(),
        files=FileCache(),
        notes=(),
    ).run()
    assert isinstance(ending, Reported | Released)
