"""A Runtime in memory, strict: core's side of a run, and the Model Gate.

It validates every request with the contract's own tables, computes every request hash anew from the JSON that would cross,
keeps a journal and a transcript, and can stop the world at any point between two steps of a turn, as a kill would.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pod_host.client.room import Claim, Room
from pod_host.contract.base import Json, JsonObject, Sent
from pod_host.contract.canonical import effect_request_hash
from pod_host.contract.encoding import decode, encode
from pod_host.contract.methods import HARNESS_ASKS
from pod_host.contract.model_call import MODEL_CALLS_PATH, TOOL_CALLS_PATH, ModelCallBody
from pod_host.contract.transcript import Entry, fold
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import RenewResult, RunGrant
from pod_host.errors import ChannelClosed, GateRefusal, RuntimeRefusal
from pod_host.turn import FileCache, Turn
from pod_host.turn.ports import SandboxPort
from pod_host.turn.tracing import OFF
from pod_host.turn.transcripts import TranscriptCache
from tests.turn.artifact_store import ArtifactStore
from tests.turn.tool_gate_double import ToolGate

SESSION, TURN, AGENT = "ses_1", "turn_1", "coder"
TOOL_ATTEMPTS = 3

Model = Callable[[JsonObject, str], Json]
"""The wire ModelCall and the effect id; gives the gate's ``outcome``."""


def text(words: str) -> JsonObject:
    return {"output": [{"type": "text", "text": words}], "finishReason": "stop"}


def calls(*named: tuple[str, Json], finish: str = "tool-calls", before: str = "") -> JsonObject:
    """A candidate with these tool calls, ids c0, c1, …"""
    blocks = [{"type": "tool-call", "id": f"c{n}", "name": name, "args": args} for n, (name, args) in enumerate(named)]
    head = [{"type": "text", "text": before}] if before else []
    return {"output": [*head, *blocks], "finishReason": finish, "usage": {"inputTokens": 10, "outputTokens": 5}}


def script(*answers: Json) -> Model:
    """Answers by how far the conversation is: a pure function of the call, as a replay needs."""

    def model(call: JsonObject, effect_id: str) -> Json:
        said = sum(item.get("role") == "assistant" for item in call["prompt"])
        return answers[said]

    return model


@dataclass
class Row:
    """One effect of the journal."""

    intent: JsonObject
    request_hash: str
    owner: str
    status: str = "invoking"
    outcome: JsonObject | None = None
    executed: int = 1  # how often core said `execute`


class World:
    """The points between two steps of a turn, counted as they are passed. At point ``at`` something happens: ``then`` is
    called, and with ``hang`` nothing passes this or a later point any more, as after a kill."""

    def __init__(self, at: int | None = None, then: Callable[[], None] | None = None, *, hang: bool = False) -> None:
        self.points: list[str] = []
        self.at = at
        self.then = then
        self.hang = hang
        self.reached = asyncio.Event()

    async def point(self, name: str) -> None:
        self.points.append(name)
        number = len(self.points) - 1
        if self.at is None or number < self.at:
            return
        if number == self.at:
            self.reached.set()
            if self.then is not None:
                self.then()
        if self.hang:
            await asyncio.Event().wait()


@dataclass
class Runtime:
    """``intercept``: called for each request before core serves it; it may raise RuntimeRefusal, or wait."""

    model: Model
    manifest: JsonObject = field(default_factory=lambda: {"id": AGENT, "instructions": "Be exact."})
    limits: JsonObject = field(default_factory=dict)
    hold: Callable[[JsonObject], str | None] = lambda intent: None
    redact: Callable[[Json], Json] = lambda value: value
    world: World = field(default_factory=World)
    intercept: Callable[[str, JsonObject], Any] | None = None
    at_gate: Callable[[JsonObject], Any] | None = None
    journal: dict[str, Row] = field(default_factory=dict)
    transcript: list[Entry] = field(default_factory=list)
    cursor: int = -1
    state: Json = None
    segment: int = 0
    outputs: list[tuple[str, JsonObject]] = field(default_factory=list)
    requests: list[tuple[str, JsonObject]] = field(default_factory=list)
    gate_bodies: dict[str, bytes] = field(default_factory=dict)
    gate_answers: dict[str, Json] = field(default_factory=dict)
    gate_calls: list[str] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    traceparents: dict[str, str | None] = field(default_factory=dict)
    members: JsonObject = field(default_factory=dict)  # of every TurnStart
    files: dict[str, bytes] = field(default_factory=dict)  # what definition.file serves
    core_tool: Callable[[JsonObject], Json] = lambda intent: {"kind": "completed", "output": "done by core"}
    artifacts: ArtifactStore = field(default_factory=ArtifactStore)
    tools: ToolGate = field(default_factory=ToolGate)
    room: Room = field(default_factory=lambda: Room(16 * 1024 * 1024))
    most_held: int = 0  # of it, at once
    claims: list[JsonObject] = field(default_factory=list)
    owner: str = ""
    owners: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # an outcome was recorded
    sent: int = 0  # requests that left the host, whether or not they arrived

    # --- what a test asks ---------------------------------------------------------------------------------------------

    def start(self, message: Json = "Hello", turn_id: str = TURN, **members: Json) -> TurnStart:
        """TurnStart as it would cross, members of objects in another order than they were sent in."""
        prefix = f"{turn_id}:{self.segment}:"
        value: JsonObject = {
            "type": "turn.start",
            "engine": "agent",
            "manifest": self.manifest,
            "checkpoint": {
                "sessionId": SESSION,
                "turnId": turn_id,
                "segment": self.segment,
                "manifestHash": "sha256:" + "ab" * 32,
                "input": message,
                "state": self.state,
            },
            "outcomes": [
                {"effectId": effect_id, "requestHash": row.request_hash, "outcome": row.outcome}
                for effect_id, row in self.journal.items()
                if row.status == "completed" and effect_id.startswith(prefix)
            ],
            "transcript": {"cursor": self.cursor},
            "routing": {"sandbox": {"ownerId": SESSION, "environmentId": "env_1"}},
            "agent": {"id": AGENT, "kind": "pod", "sandbox": {"workspace": "/workspace"}},
            "limits": self.limits,
            **({"mcp": self.tools.facts(self.tools.snapshot)} if self.tools.snapshot else {}),
            **self.members,
            **members,
        }
        return TurnStart.read(_stored(value))

    def lease(self) -> Run:
        self.owners += 1
        self.owner = f"run_{self.owners}"
        return Run(self, self.owner)

    def turn(self, sandbox: SandboxPort | None = None, **members: Any) -> Turn:
        """A leased segment. ``members``: of TurnStart, or ``transcripts``, ``files``, ``notes``, ``tracing``, ``run``."""
        transcripts = members.pop("transcripts", None) or TranscriptCache()
        files = members.pop("files", None) or FileCache()
        notes = members.pop("notes", ())
        tracing = members.pop("tracing", OFF)
        run = members.pop("run", None) or self.lease()
        return Turn(
            run=run,
            start=self.start(**members),
            gates=self,
            sandbox=sandbox,
            transcripts=transcripts,
            files=files,
            notes=notes,
            tracing=tracing,
        )

    @property
    def model_calls(self) -> list[JsonObject]:
        """The ModelCalls that came to the gate, each once."""
        return [decode(body)["call"] for body in self.gate_bodies.values()]

    def asked(self, method: str) -> list[JsonObject]:
        return [params for name, params in self.requests if name == method]

    # --- core -----------------------------------------------------------------------------------------------------------

    async def serve(self, run_id: str, method: str, params: JsonObject) -> JsonObject:
        await self.world.point(f"{method} asked")
        self.requests.append((method, params))
        if self.intercept is not None and (waiting := self.intercept(method, params)) is not None:
            await waiting
        if run_id != self.owner or params["runId"] != run_id:
            raise RuntimeRefusal("run_not_held", "another run holds the session")
        answer = self._serve(method, params)
        await self.world.point(f"{method} answered")
        return answer

    def _serve(self, method: str, params: JsonObject) -> JsonObject:
        if method == "transcript.read":
            return {"cursor": self.cursor, "entries": self.transcript}
        if method == "effect.intent":
            return self._intent(params["effect"], params["requestHash"])
        if method == "effect.outcome":
            return self._outcome(params)
        if method == "definition.file":
            return self._file(params)
        if method == "session.mcp":
            return self.tools.session_mcp(params)
        if method == "artifact.read":
            return self.artifacts.read(params)
        if method == "artifact.write":
            return self.artifacts.write(self.owner, params)
        if method == "event":
            self.claims.append(params)
            return {}
        return self._output(method, params)

    def _intent(self, intent: JsonObject, request_hash: str) -> JsonObject:
        effect_id = intent["effectId"]
        assert effect_id.startswith(f"{intent['turnId']}:{self.segment}:{intent['kind']}:")
        assert intent["sessionId"] == SESSION
        if intent["kind"] == "tool" and effect_request_hash(intent) != request_hash:
            raise RuntimeRefusal("invalid", "The request hash does not match the request")
        row = self.journal.get(effect_id)
        if row is None:
            row = self.journal[effect_id] = Row(intent, request_hash, self.owner)
            held = self.hold(intent)
            if held is not None:
                row.status = held
            elif intent["kind"] == "tool" and intent["target"]["kind"] == "runtime":
                row.status, row.outcome = "completed", {"value": self.core_tool(intent)}
        elif row.request_hash != request_hash:
            raise RuntimeRefusal("effect_drift", f"{effect_id} was asked with another request")
        elif row.status in ("pending", "uncertain"):
            row.status = self.hold(intent) or "invoking"
        elif row.status == "invoking":
            at_a_gate = intent["kind"] == "model" or intent["target"]["kind"] in ("mcp", "http")
            if row.owner != self.owner and self.tools.forgets:
                self.tools.kept.pop(effect_id, None)
            if at_a_gate and intent["kind"] == "tool" and row.executed == TOOL_ATTEMPTS:
                row.status, row.outcome = "completed", {"value": _failed("tool.interrupted", "It was sent too often")}
            elif row.owner != self.owner and not at_a_gate:
                row.status, row.outcome = "completed", {"value": _failed("tool.interrupted", "A crash cut it off")}
            row.owner = self.owner
            row.executed += 1
        if row.status == "completed":
            return {"status": "completed", "outcome": row.outcome}
        if row.status in ("pending", "uncertain"):
            return {"status": row.status}
        answer: JsonObject = {"status": "execute", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        known = effect_id in self.tools.kept or intent["kind"] == "model"
        return {**answer, "rejoin": True} if row.executed > 1 and known else answer

    def _file(self, params: JsonObject) -> JsonObject:
        content = self.files[params["sha256"]]
        start = params.get("offset", 0)
        assert params["length"] <= self.limits.get("chunkBytes", 16 * 1024 * 1024)
        return {"base64": base64.b64encode(content[start : start + params["length"]]).decode()}

    def _outcome(self, params: JsonObject) -> JsonObject:
        row = self.journal[params["effectId"]]
        assert row.status == "invoking", "an effect settles once"
        limit = self.limits.get("recordEntryBytes", 960 * 1024)
        if len(encode(params.get("value"))) > limit:
            raise RuntimeRefusal("limit_exceeded", f"recordEntryBytes is {limit}")
        if "error" in params and row.intent["kind"] == "model":
            row.status = "uncertain"
            return {"status": "uncertain"}
        lost = _failed("tool.lost", params.get("error", ""))
        self.settled.set()
        row.status, row.outcome = "completed", {"value": self.redact(params["value"]) if "value" in params else lost}
        return {"status": "completed", "outcome": row.outcome}

    def _output(self, method: str, params: JsonObject) -> JsonObject:
        limit = self.limits.get("recordEntryBytes", 960 * 1024)
        for update in params.get("transcript", []):
            if len(encode(update)) > limit:
                raise RuntimeRefusal("limit_exceeded", f"recordEntryBytes is {limit}")
            self._compacted(update)
        self.outputs.append((method, params))
        if params.get("status") in ("completed", "yielded"):
            self.transcript = fold(self.transcript, params["transcript"])
            self.cursor += len(params["transcript"])
            self.state = params["state"]
            self.segment = self.segment + 1 if params["status"] == "yielded" else 0
        if method != "turn.waiting":
            self.owner = ""
        return {"cursor": self.cursor}

    def _compacted(self, update: JsonObject) -> None:
        """A marked edit names the completed summary calls of its turn that wrote the entry it begins with."""
        facts = update.get("compaction")
        assert (update.get("kind") == "compaction") == (facts is not None)
        if facts is None:
            return
        assert update["keep"] == 0
        assert update["entries"][0]["kind"] == "compaction"
        for effect_id in facts["summaryEffectIds"]:
            row = self.journal.get(effect_id)
            if row is None or row.status != "completed" or row.intent.get("purpose") != "summary":
                raise RuntimeRefusal("invalid", f"{effect_id} is no completed summary call")

    # --- the Model Gate -------------------------------------------------------------------------------------------------

    def claim(self) -> Claim:
        return self.room.claim()

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
        if path != MODEL_CALLS_PATH:
            answer = await self._tool_call(path, body, key, token)
            if claim is not None:
                await claim.take(len(encode(answer)))
                self.most_held = max(self.most_held, self.room.held)
            return answer
        await self.world.point("gate asked")
        self.gate_calls.append(key)
        self.traceparents[key] = traceparent
        assert token() == f"token-{self.owner}"
        value = decode(body)
        ModelCallBody.model_validate(value)
        row = self.journal[key]
        assert row.status == "invoking", "a call is journaled before it runs"
        assert value["effectId"] == key
        assert value["invocationId"] == row.intent["context"]["invocationId"]
        assert value["call"]["executionId"] == SESSION
        assert effect_request_hash({**row.intent, "input": value["call"]}) == row.request_hash
        if self.gate_bodies.setdefault(key, body) != body:
            raise GateRefusal(409, "gate_conflict", "another body ran under this key")
        if self.at_gate is not None and (waiting := self.at_gate(value["call"])) is not None:
            await waiting
        if key not in self.gate_answers:
            self.gate_answers[key] = self.model(value["call"], key)
        await self.world.point("gate answered")
        return {"outcome": _stored(self.gate_answers[key])}

    async def _tool_call(self, path: str, body: bytes, key: str, token: Callable[[], str]) -> JsonObject:
        await self.world.point("tool gate asked")
        if token() != f"token-{self.owner}":
            raise GateRefusal(409, "run_stale", "the run is over")
        row = self.journal.get(key)
        runs = row is not None and (row.status == "invoking" or key in self.tools.kept)
        answer = await self.tools.call(path, body, key, row.intent if row is not None and runs else None)
        await self.world.point("tool gate answered")
        return _stored(answer)  # type: ignore[no-any-return]

    async def cancel(self, path: str, *, key: str, token: Callable[[], str]) -> None:
        assert path in (MODEL_CALLS_PATH, TOOL_CALLS_PATH)
        self.cancels.append(key)


class Run:
    """`RunPort`: every message crosses as JSON, checked by both ends' tables."""

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self._runtime = runtime
        self.grant = RunGrant(
            run_id=run_id,
            session_id=SESSION,
            turn_id=TURN,
            epoch=1,
            token=f"token-{run_id}",
            token_expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        )
        self.closed = False

    @property
    def token(self) -> str:
        return self.grant.token or ""

    async def renew(self) -> RenewResult:
        if self.closed:
            raise ChannelClosed("it was lost")
        return RenewResult(ok=True)

    async def request(self, method: str, params: Sent) -> Any:
        if self.closed:
            raise ChannelClosed("it was lost")
        self._runtime.sent += 1
        wire = decode(encode(params.wire()))
        HARNESS_ASKS[method].read_params(wire)
        answer = await self._runtime.serve(self.grant.run_id, method, wire)
        return HARNESS_ASKS[method].read_result(_stored(answer))


def _stored(value: Json) -> Json:
    """As a database gives JSON back: the same value, members of objects in an order of its own."""
    if isinstance(value, dict):
        return {name: _stored(value[name]) for name in sorted(value, key=lambda name: (len(name), name))}
    if isinstance(value, list):
        return [_stored(item) for item in value]
    return value


def _failed(code: str, message: str) -> JsonObject:
    return {"kind": "failed", "code": code, "message": message}
