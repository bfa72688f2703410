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
from tests.turn.artifact_store import PREFIX, ArtifactStore
from tests.turn.double import calls, text
from tests.turn.sandbox_double import Sandbox

_STEPS = 4  # answers with calls in them, before the model is done
_REQUESTS = 6000  # of one turn, whatever it is told: chunks may be of one byte
_CALLS: tuple[tuple[str, JsonObject], ...] = (
    ("bash", {"command": "ls", "timeout": 5}),
    ("read", {"path": "a"}),
    ("weather", {"city": "Ulm"}),
    ("github__search", {"q": "x"}),
    ("github__tool_7", {"q": "x"}),
    ("helper", {"message": "help"}),
    ("named", {"message": "help"}),
    ("load_skill", {"name": "s"}),
    ("read_skill_resource", {"name": "s", "path": "SKILL.md"}),
    ("tool_search", {"query": "finds things tool_7"}),
    ("schedule_wake", {"in": "90s", "note": "wake"}),
    ("schedule_wake", {"at": "2031-05-04T08:00:00Z", "note": "wake"}),
    ("memory", {"command": "view", "path": "/memories", "view_range": [1, 2]}),
    ("memory", {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}),
    ("read_artifact", {"artifactId": "a", "version": 1, "offset": 1, "length": 2}),
    ("save_artifact", {"content": "text", "name": "b.txt"}),
    ("save_artifact", {"path": "a", "artifactId": "a"}),
    ("nothing_of_that_name", {}),
)
_ENTRIES: list[JsonObject] = [
    {"kind": "input", "turnId": "t0", "event": {"kind": "user-message", "text": "Earlier"}},
    {"kind": "candidate", "turnId": "t0", "stepId": "t0.step-1", "candidate": calls(("bash", {"command": "ls"}))},
    {"kind": "tool-results", "turnId": "t0", "stepId": "t0.step-1", "results": [
        {"callId": "c0", "toolName": "bash", "kind": "completed", "output": {"exitCode": 0}}]},
    {"kind": "final", "turnId": "t0", "stepId": "t0.step-2", "output": "Done."},
]  # fmt: skip
_LONG: list[JsonObject] = [
    {**_ENTRIES[0], "turnId": f"t{number}", "event": {"kind": "user-message", "text": "Earlier. " * 60}} if part == 0
    else {**_ENTRIES[3], "turnId": f"t{number}", "stepId": f"t{number}.step-1", "output": "Long ago. " * 60}
    for number in range(8)
    for part in range(2)
]  # fmt: skip
_LAST = (text("Done."), text('{"city": "Ulm"}'), text('{"city": 1}'), {**text("Do"), "finishReason": "length"})
_ODD_ANSWERS: tuple[JsonObject, ...] = (
    {"kind": "failed", "code": "transient", "message": "m", "retryable": True, "retryAfterMs": 5000},
    {"kind": "failed", "code": "context_overflow", "message": "m", "retryable": False},
    {"kind": "failed", "code": "invalid_output", "message": "m", "retryable": True},
    {"output": [], "finishReason": "stop"},
    text("x" * 8000),
    {"output": [{"type": "reasoning", "text": "r"}, {"type": "json", "value": 1}], "finishReason": "content-filter"},
    {"output": [{"type": "tool-call", "id": "c0", "name": "bash", "args": "{"}], "finishReason": "tool-calls"},
)
_FILES = {"outputs/a.txt": b"text", "outputs/d/b.png": bytes(1500), "a": b"one\ntwo\n"}
_TOOL_ANSWERS = (
    {"ok": True, "result": {"content": [{"type": "text", "text": "x"}, {"type": "image", "mimeType": "image/png"}]}},
    {"ok": True, "result": {"kind": "completed", "output": {"a": 1}}},
    {"ok": True, "result": {"kind": "failed", "code": "c", "message": "m", "retryable": True}},
    {"ok": True, "result": {"structuredContent": {"a": 1}, "content": []}, "redacted": ["x"]},
    {"ok": True, "result": {"kind": "completed", "output": ["x" * 3000, {"a": ["y" * 9000] * 9}]}},
    {"ok": True, "result": {"content": [
        {"type": "text", "text": "x" * 40_000}, {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="},
        {"type": "resource", "resource": {"uri": "u", "mimeType": "text/plain", "text": "t" * 9000}}]}},
    {"ok": False, "error": {"code": "c", "message": "m", "uncertain": True, "failure": {"code": "mcp.lost", "message": "m"}}},
)  # fmt: skip


class Runtime:
    """Core and the gates. Both check what they are sent, as the real ones do, and answer with whatever ``source`` says."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asked = 0
        self._said = 0
        self.ends: list[JsonObject] = []
        self._store = ArtifactStore(chunk_bytes=1000, hash_prefix=PREFIX if source.below(2) else "")
        for name, kind in (("a.txt", "text/plain"), ("t.md", "text/plain"), ("i.png", "image/png")):
            self._store.put(b"some text that is in it", name, kind, artifactId=name[0])
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
                return {"cursor": 2, "entries": pick(self._source, (_ENTRIES, _ENTRIES + _LONG, []))}
            case "effect.intent" if params["effect"].get("target", {}).get("kind") == "runtime":
                return {"status": "completed", "outcome": {"value": {"kind": "completed", "output": "by core"}}}
            case "effect.intent" if self._source.below(8) == 1:
                return pick(self._source, ({"status": "pending"}, {"status": "uncertain"}, {"status": "completed"}))
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
                return self._store.read(params)
            case "artifact.write":
                return self._store.write("run_1", params)
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
            answer = pick(
                self._source, (*_TOOL_ANSWERS[1:3], _TOOL_ANSWERS[4]) if path == HTTP_CALLS_PATH else _TOOL_ANSWERS
            )
        changed = self._mutated(answer)
        return changed if isinstance(changed, dict) else {}

    async def cancel(self, path: str, *, key: str, token: Callable[[], str]) -> None:
        self._count()

    def _model(self, asked: JsonObject) -> Json:
        self._said += 1
        if self._said > _STEPS or not asked["call"].get("tools"):
            return pick(
                self._source, (text("Done."), text('{"city": "Ulm"}'), {**text("Do"), "finishReason": "length"})
            )
        named = [pick(self._source, _CALLS) for _ in range(1 + self._source.below(3))]
        return calls(*((name, self._mutated(arguments)) for name, arguments in named))

    # ---

    def work(self, tool: str, arguments: JsonObject) -> Outcome:
        """The sandbox. Its worker is ours, so its answers have their shape."""
        if self._source.below(4) == 1:
            return Failed("sandbox.not_found", "No such file")
        output = {"stdout": hostile.text(self._source) * (1 + 9 * self._source.below(2)), "stderr": "", "exitCode": 0}
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
    start = turn_start.read(source, pick(source, turn_start.STARTS))
    if start is not None:
        with loop.no_bugs():
            loop.run(_turn(source, start))


async def _turn(source: Source, start: TurnStart) -> None:
    runtime = Runtime(source)
    ending = await Turn(
        run=runtime,
        start=start,
        gates=runtime,
        sandbox=Sandbox(runtime.work, files=dict(_FILES)) if source.below(4) != 1 else None,
        transcripts=TranscriptCache(),
        files=FileCache(),
        notes=(),
    ).run()
    assert isinstance(ending, Reported | Released)
