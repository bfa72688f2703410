"""The effects journal: an intent before anything runs, an outcome after it (Harness API v5, section 4)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Final

from pod_host.contract.base import Json, JsonObject, Wire
from pod_host.contract.canonical import effect_request_hash
from pod_host.contract.effects import (
    IntentParams,
    ModelIntent,
    OutcomeParams,
    ToolCompleted,
    ToolDenied,
    ToolFailed,
    ToolIntent,
    tool_failure,
)
from pod_host.contract.encoding import encode
from pod_host.contract.model_call import ModelCandidate, ModelFailure
from pod_host.dev.authority import Authority
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database, dump, load
from pod_host.dev.leases import Leases
from pod_host.dev.record import Place, Record
from pod_host.dev.runs import Holder, Run
from pod_host.dev.sessions import Sessions
from pod_host.dev.targets import ByCore, Refused, decide, identity
from pod_host.errors import ContractViolation, RuntimeRefusal

_TOOL_VALUES: Final[dict[str, type[Wire]]] = {"completed": ToolCompleted, "failed": ToolFailed, "denied": ToolDenied}

CoreTool = Callable[[Run, ToolIntent], JsonObject]
"""Runs a ``runtime`` call within the intent's transaction; the outcome's value."""


class Journal:
    def __init__(
        self,
        config: RuntimeConfig,
        db: Database,
        record: Record,
        authority: Authority,
        sessions: Sessions,
        leases: Leases,
        core_tools: Mapping[str, CoreTool],
    ) -> None:
        self._config = config
        self._db = db
        self._record = record
        self._authority = authority
        self._sessions = sessions
        self._leases = leases
        self._core_tools = core_tools
        self.gate_knows: Callable[[str], bool] = lambda effect_id: False

    # --- Intents ---------------------------------------------------------------------------------------------------------

    def intent(self, holder: Holder, params: IntentParams) -> JsonObject:
        run = self._leases.held(holder, params.run_id)
        effect = params.effect
        self._check(run, effect, params.request_hash)
        if isinstance(effect, ToolIntent):  # what was asked is hashed as it came; what is recorded of it holds no token
            effect = effect.model_copy(update={"input": self._authority.redact(effect.input)})
        with self._db.transaction():
            row = self.row(effect.effect_id)
            if row is None:
                return self._first(run, effect, params.request_hash)
            if row["request_hash"] != params.request_hash:
                raise RuntimeRefusal("effect_drift", f"effect {row['id']} was asked before with another request")
            self._db.run("UPDATE effects SET run_id = ? WHERE id = ?", run.id, row["id"])
            return self._again(run, effect, row)

    def _check(self, run: Run, effect: ModelIntent | ToolIntent, request_hash: str) -> None:
        if (effect.session_id, effect.turn_id) != (run.session_id, run.turn_id):
            raise RuntimeRefusal("invalid", "The effect is not of this run's turn")
        prefix = f"{run.turn_id}:{run.segment}:{effect.kind}:"
        if not effect.effect_id.startswith(prefix) or effect.effect_id == prefix:
            raise RuntimeRefusal("invalid", f"effectId is not {prefix}<identity>")
        if effect.manifest_hash != run.manifest_hash:
            raise RuntimeRefusal("invalid", "manifestHash is not the checkpoint's")
        if effect.agent_id != run.agent_id:
            raise RuntimeRefusal("invalid", f"agentId is not the manifest's id, {run.agent_id}")
        if effect.kind == "model":
            return  # its hash is over the ModelCall, which core does not see
        try:
            computed = effect_request_hash(effect.wire())
        except RecursionError:
            raise RuntimeRefusal("invalid", "input is nested too deeply") from None
        if computed != request_hash:
            raise RuntimeRefusal("invalid", "The request hash does not match the request")

    def _first(self, run: Run, effect: ModelIntent | ToolIntent, request_hash: str) -> JsonObject:
        self._db.run(
            "INSERT INTO effects VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'invoking', 1, NULL, ?, NULL)",
            effect.effect_id,
            run.session_id,
            run.turn_id,
            run.segment,
            run.id,
            effect.kind,
            request_hash,
            dump(effect.wire()),
            time.time(),
        )
        if isinstance(effect, ModelIntent):
            self._started(run, effect)
            return {"status": "execute"}
        mcp = load(self._sessions.row(run.session_id)["mcp"] or "null")
        decision = decide(effect, self._sessions.definition(run.session_id), mcp, self._config)
        if isinstance(decision, Refused):
            return self._complete(effect.effect_id, decision.value)
        if isinstance(decision, ByCore):
            self._started(run, effect)
            return self._complete(effect.effect_id, self._core_tools[decision.operation](run, effect))
        if decision.ask:
            self._db.run("UPDATE effects SET status = 'pending' WHERE id = ?", effect.effect_id)
            return {"status": "pending"}
        self._started(run, effect)
        return self._execute(run, effect)

    def _again(self, run: Run, effect: ModelIntent | ToolIntent, row: sqlite3.Row) -> JsonObject:
        if row["status"] == "completed":
            return {"status": "completed", "outcome": load(row["outcome"])}
        if row["status"] in ("pending", "uncertain"):
            return self._answered(run, effect, row)
        return self._resent(run, effect, row)

    def _answered(self, run: Run, effect: ModelIntent | ToolIntent, row: sqlite3.Row) -> JsonObject:
        """A call that waited for a person: as the answer says, or still waiting."""
        approved = self._db.value("SELECT approved FROM interactions WHERE id = ?", row["id"])
        if approved is None:
            return {"status": row["status"]}
        if approved:
            # The answer is used up: should the call become uncertain again, a person is asked again.
            self._db.run("DELETE FROM interactions WHERE id = ?", row["id"])
            self._db.run(
                "UPDATE effects SET status = 'invoking', attempts = 1, started = ? WHERE id = ?", time.time(), row["id"]
            )
            self._started(run, effect)
            return self._execute(run, effect)
        if isinstance(effect, ToolIntent):
            return self._complete(row["id"], tool_failure("tool.denied", f"A person denied {effect.tool_name}"))
        failure = {
            "kind": "failed",
            "code": "transient",
            "message": "The call's outcome is not known",
            "retryable": False,
        }
        return self._complete(row["id"], failure)

    def _resent(self, run: Run, effect: ModelIntent | ToolIntent, row: sqlite3.Row) -> JsonObject:
        """An intent for a row that is still invoking: the run before was cut off, or a gate hop was lost."""
        if isinstance(effect, ToolIntent):
            kind = effect.target.kind if effect.target else None
            if kind not in ("mcp", "http"):
                return self._complete(row["id"], tool_failure("tool.interrupted", "The call was interrupted"))
            if row["attempts"] >= self._config.tool_attempts:
                text = f"The call was sent {row['attempts']} times and its answer never came"
                return self._complete(row["id"], tool_failure("tool.interrupted", text))
        self._db.run("UPDATE effects SET attempts = attempts + 1 WHERE id = ?", row["id"])
        rejoin = {"rejoin": True} if self.gate_knows(row["id"]) else {}
        return self._execute(run, effect) | rejoin

    def _execute(self, run: Run, effect: ModelIntent | ToolIntent) -> JsonObject:
        if isinstance(effect, ModelIntent):
            return {"status": "execute"}
        trace = self._sessions.turn(run.turn_id)["trace"].split("-")[1]
        return {"status": "execute", "traceparent": f"00-{trace}-{token_hex(8)}-01"}

    # --- Outcomes --------------------------------------------------------------------------------------------------------

    def outcome(self, holder: Holder, params: OutcomeParams) -> JsonObject:
        run = self._leases.held(holder, params.run_id, stopping=True)
        row = self.row(params.effect_id)
        if row is None or row["turn_id"] != run.turn_id or row["segment"] != run.segment:
            raise RuntimeRefusal("invalid", f"no effect {params.effect_id} was asked in this segment")
        if row["status"] == "completed":
            return {"status": "completed", "outcome": load(row["outcome"])}
        if row["status"] != "invoking":
            raise RuntimeRefusal("invalid", f"effect {row['id']} is {row['status']}: it does not run")
        with self._db.transaction():
            if params.error is not None:
                if row["kind"] == "model":
                    self._db.run("UPDATE effects SET status = 'uncertain' WHERE id = ?", row["id"])
                    return {"status": "uncertain"}
                return self._complete(row["id"], self._authority.redact(tool_failure("tool.interrupted", params.error)))
            size, most = len(encode(params.value)), self._config.limits.record_entry_bytes
            if size > most:
                raise RuntimeRefusal("limit_exceeded", f"value is {size} bytes; recordEntryBytes is {most}")
            self._look_at(row, params.value)
            return self._complete(row["id"], self._authority.redact(params.value))

    def completed_of(self, turn_id: str, segment: int) -> list[JsonObject]:
        """``TurnStart.outcomes``: the completed effects of one segment."""
        rows = self._db.all(
            "SELECT * FROM effects WHERE turn_id = ? AND segment = ? AND status = 'completed' ORDER BY ended, rowid",
            turn_id,
            segment,
        )
        return [
            {"effectId": row["id"], "requestHash": row["request_hash"], "outcome": load(row["outcome"])} for row in rows
        ]

    def row(self, effect_id: str) -> sqlite3.Row | None:
        return self._db.one("SELECT * FROM effects WHERE id = ?", effect_id)

    def tool_rows(self, session_id: str) -> list[JsonObject]:
        """What ``calls/tool`` lists: one row per tool call, the oldest first."""
        rows = self._db.all(
            "SELECT * FROM effects WHERE session_id = ? AND kind = 'tool' ORDER BY started, rowid", session_id
        )
        return [self._tool_row(row) for row in rows]

    # --- What the log says -----------------------------------------------------------------------------------------------

    def _complete(self, effect_id: str, value: Json) -> JsonObject:
        outcome = {"value": value}
        self._db.run(
            "UPDATE effects SET status = 'completed', outcome = ?, ended = ? WHERE id = ?",
            dump(outcome),
            time.time(),
            effect_id,
        )
        row = self.row(effect_id)
        assert row is not None
        intent = load(row["intent"])
        if row["kind"] == "model":
            self._answered_by_model(row, intent, value)
        else:
            self._record.add(
                "tool.completed",
                _place(row),
                effectId=effect_id,
                callId=intent["context"]["callId"],
                toolName=intent["toolName"],
                target=intent.get("target"),
                durationMs=_duration(row),
                **tool_result(value),
            )
        return {"status": "completed", "outcome": outcome}

    def _answered_by_model(self, row: sqlite3.Row, intent: JsonObject, value: Json) -> None:
        if intent.get("purpose") == "summary":
            return  # a summary is no message
        if isinstance(value, dict) and value.get("kind") == "failed":
            self._record.add(
                "model.failed",
                _place(row),
                effectId=row["id"],
                code=value.get("code"),
                message=value.get("message"),
                durationMs=_duration(row),
            )
            return
        blocks = value.get("output", []) if isinstance(value, dict) else [{"type": "text", "text": value}]
        blocks = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
        self._record.add(
            "message.assistant",
            _place(row),
            effectId=row["id"],
            text="".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text"),
            toolCalls=[
                {"id": block.get("id"), "name": block.get("name"), "args": block.get("args")}
                for block in blocks
                if block.get("type") == "tool-call"
            ],
            finishReason=value.get("finishReason") if isinstance(value, dict) else None,
            usage=value.get("usage") if isinstance(value, dict) else None,
            durationMs=_duration(row),
        )

    def _started(self, run: Run, effect: ModelIntent | ToolIntent) -> None:
        if isinstance(effect, ModelIntent):
            self._record.add("model.started", run.place, effectId=effect.effect_id, purpose=effect.purpose)
        else:
            self._record.add(
                "tool.started",
                run.place,
                effectId=effect.effect_id,
                callId=effect.context.call_id,
                toolName=effect.tool_name,
                input=effect.input,
                target=effect.target.wire() if effect.target else None,
            )

    def _look_at(self, row: sqlite3.Row, value: Json) -> None:
        """Values have a shape that core does not check: say so where one is off."""
        try:
            if row["kind"] == "tool":
                kind = value.get("kind") if isinstance(value, dict) else None
                shape = _TOOL_VALUES.get(kind) if isinstance(kind, str) else None
                if shape is not None:
                    shape.read(value)
            elif isinstance(value, dict):
                shape = ModelFailure if value.get("kind") == "failed" else ModelCandidate
                shape.read(value)
            elif not isinstance(value, str):
                raise ContractViolation("Invalid model outcome: a candidate, a text or a failure is needed")
        except ContractViolation as fault:
            self._record.warn(f"effect.outcome of a {row['kind']} call: {fault}", session_id=row["session_id"])

    def _tool_row(self, row: sqlite3.Row) -> JsonObject:
        intent = load(row["intent"])
        named: JsonObject = {
            "effectId": row["id"],
            "turnId": row["turn_id"],
            "callId": intent["context"]["callId"],
            "toolName": intent["toolName"],
            **identity(intent),
            "status": row["status"],
            "attempts": row["attempts"],
        }
        if "skill" in intent and intent["skill"] in self._sessions.definition(row["session_id"]).skill_names():
            named["skill"] = intent["skill"]
        if row["outcome"] is not None:
            named |= {"durationMs": _duration(row), **tool_result(load(row["outcome"])["value"])}
        return named


def tool_result(value: Json) -> JsonObject:
    """``{output}`` or ``{error: {code, message}}`` of a tool outcome's value; any other JSON is an output."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "failed":
        return {"error": {"code": value.get("code"), "message": value.get("message")}}
    if kind == "denied":
        return {"error": {"code": "tool.denied", "message": value.get("reason")}}
    return {"output": value.get("output") if kind == "completed" else value}


def _place(row: sqlite3.Row) -> Place:
    return Place(row["session_id"], row["turn_id"], row["run_id"])


def _duration(row: sqlite3.Row) -> int:
    return max(0, round(1000 * float(row["ended"] - row["started"])))
