"""The output of a segment, and what becomes of the turn (Harness API v5, section 7)."""

from __future__ import annotations

from typing import Final

from pod_host.contract.base import JsonObject, Wire
from pod_host.contract.encoding import encode
from pod_host.contract.output import OUTPUT_METHODS, TurnOutput
from pod_host.contract.transcript import (
    CandidateEntry,
    CompactionEntry,
    FinalEntry,
    InputEntry,
    ToolResultsEntry,
    TranscriptUpdate,
)
from pod_host.dev.authority import Authority
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database, dump, load
from pod_host.dev.leases import Leases
from pod_host.dev.record import Record
from pod_host.dev.runs import PAST_DEADLINE, Holder, Run
from pod_host.dev.sessions import Sessions
from pod_host.dev.transcripts import Transcripts
from pod_host.errors import ContractViolation, RuntimeRefusal

_DEFAULT_STATUS: Final = {"turn.completed": "completed", "turn.waiting": "waiting", "checkpoint": "yielded"}
_ENTRIES: Final[dict[str, type[Wire]]] = {
    "input": InputEntry,
    "candidate": CandidateEntry,
    "tool-results": ToolResultsEntry,
    "final": FinalEntry,
    "compaction": CompactionEntry,
}


class TurnFails(Exception):
    """What the harness sent cannot be recorded, and the turn fails of it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class Outputs:
    def __init__(
        self,
        config: RuntimeConfig,
        db: Database,
        record: Record,
        authority: Authority,
        sessions: Sessions,
        transcripts: Transcripts,
        leases: Leases,
    ) -> None:
        self._config = config
        self._db = db
        self._record = record
        self._authority = authority
        self._sessions = sessions
        self._transcripts = transcripts
        self._leases = leases

    def output(self, holder: Holder, method: str, params: TurnOutput) -> JsonObject:
        """The one output request of a run. Asked again on the same connection, it gets the same answer."""
        known = holder.runs.get(params.run_id)
        if known is not None and method in known.answers:
            return known.answers[method]
        run = self._leases.held(holder, params.run_id, cancelled=method == "turn.failed")
        status = self._status(run, method, params)
        self._check_entries(params.transcript or [])
        with self._db.transaction():
            if run.abort is None or run.abort == "shutdown":
                self._settle(run, status, params)
            elif run.abort == "deadline":
                self._sessions.end_turn(run.turn_id, "failed", error=PAST_DEADLINE, run_id=run.id)
            answer = {"cursor": self._transcripts.cursor(run.session_id)}
            self._leases.end(run, f"output.{status}", over="output")
            self._db.after_commit(lambda: run.answers.update({method: answer}))
        return answer

    # --- What is refused, so that the run is still held --------------------------------------------------------------------

    def _status(self, run: Run, method: str, params: TurnOutput) -> str:
        if method == "turn.paused" or params.status == "paused":
            raise RuntimeRefusal("invalid", "A custom harness cannot pause a turn")
        status = params.status or ("failed" if params.thrown else _DEFAULT_STATUS.get(method))
        if params.status is None and params.thrown is None:
            self._record.warn(f"{method} without a status: taken as {status}", session_id=run.session_id)
        if status is None or OUTPUT_METHODS[status] != method:
            raise RuntimeRefusal("invalid", f"status {status} does not go with {method}")
        if status == "failed" and params.error is None and params.thrown is None:
            raise RuntimeRefusal("invalid", "a failed turn needs error or thrown")
        if status in ("waiting", "uncertain"):
            self._check_waiting(run, params.effect_ids or [])
        return status

    def _check_waiting(self, run: Run, effect_ids: list[str]) -> None:
        if not effect_ids:
            raise RuntimeRefusal("invalid", "effectIds: the effects that the segment waits on are needed")
        for effect_id in effect_ids:
            row = self._db.one("SELECT turn_id, status FROM effects WHERE id = ?", effect_id)
            if row is None or row["turn_id"] != run.turn_id or row["status"] not in ("pending", "uncertain"):
                raise RuntimeRefusal("invalid", f"effectIds: {effect_id} is not pending or uncertain in this turn")

    def _check_entries(self, updates: list[TranscriptUpdate]) -> None:
        most = self._config.limits.record_entry_bytes
        for number, update in enumerate(updates):
            size = len(encode(update.wire()))
            if size > most:
                raise RuntimeRefusal(
                    "limit_exceeded", f"transcript.{number} is {size} bytes; recordEntryBytes is {most}"
                )
            for entry in update.entries:
                kind = entry.get("kind")
                shape = _ENTRIES.get(kind) if isinstance(kind, str) else None
                if shape is None:
                    raise RuntimeRefusal("invalid", f"transcript.{number}: {kind!r} is no kind of entry")
                try:
                    shape.read(entry)
                except ContractViolation as fault:
                    self._record.warn(f"transcript entry: {fault}")

    # --- What becomes of the turn ----------------------------------------------------------------------------------------

    def _settle(self, run: Run, status: str, params: TurnOutput) -> None:
        try:
            with self._db.savepoint():
                self._take(run, status, params)
        except TurnFails as fault:
            self._sessions.end_turn(run.turn_id, "failed", error=fault.error, run_id=run.id)

    def _take(self, run: Run, status: str, params: TurnOutput) -> None:
        if status == "completed":
            self._keep(run, params)
            self._sessions.end_turn(
                run.turn_id, "completed", output=self._authority.redact(params.output), run_id=run.id
            )
        elif status == "yielded":
            self._keep(run, params)
            self._db.run(
                "UPDATE turns SET segment = segment + 1, segment_input = ? WHERE id = ?",
                dump({"kind": "continue"}),
                run.turn_id,
            )
            self._record.add("turn.yielded", run.place)
            self._sessions.queue(run.turn_id)
        elif status in ("waiting", "uncertain"):
            self._wait(run, params.effect_ids or [])
        elif status == "failed":
            error = params.error.wire() if params.error else None
            if error is None and params.thrown is not None:
                error = {"code": params.thrown.code or "harness.thrown", "message": params.thrown.message}
            self._sessions.end_turn(run.turn_id, "failed", error=self._authority.redact(error), run_id=run.id)
        else:
            self._sessions.end_turn(run.turn_id, "cancelled", run_id=run.id)

    def _keep(self, run: Run, params: TurnOutput) -> None:
        """State and transcript edits of a segment that counts. Raises TurnFails."""
        if "state" in params.model_fields_set:
            size, most = len(encode(params.state)), self._config.limits.harness_state_bytes
            if size > most:
                raise TurnFails("limit_exceeded", f"state is {size} bytes; harnessStateBytes is {most}")
            self._db.run("UPDATE sessions SET state = ? WHERE id = ?", dump(params.state), run.session_id)
        else:
            self._record.warn("an output without state: the session keeps the state it had", session_id=run.session_id)
        updates = params.transcript or []
        for update in updates:
            if update.compaction is not None or update.kind is not None:
                self._compacted(run, update)
        try:
            self._transcripts.append(
                run.session_id, run.turn_id, [self._authority.redact(update.wire()) for update in updates]
            )
        except ContractViolation as fault:
            raise TurnFails("invalid", str(fault)) from None

    def _compacted(self, run: Run, update: TranscriptUpdate) -> None:
        facts = update.compaction
        if facts is None or update.kind != "compaction":
            raise TurnFails("invalid", "a compaction's edit needs both kind and compaction")
        for effect_id in facts.summary_effect_ids:
            row = self._db.one("SELECT turn_id, kind, status, intent FROM effects WHERE id = ?", effect_id)
            if (
                row is None
                or (row["turn_id"], row["kind"], row["status"]) != (run.turn_id, "model", "completed")
                or load(row["intent"]).get("purpose") != "summary"
            ):
                raise TurnFails("invalid", f"summaryEffectIds: {effect_id} is no completed summary call of this turn")
        self._record.add("context.compacted", run.place, **facts.wire())

    def _wait(self, run: Run, effect_ids: list[str]) -> None:
        for effect_id in effect_ids:
            row = self._db.one("SELECT kind, status, intent FROM effects WHERE id = ?", effect_id)
            assert row is not None
            intent = load(row["intent"])
            target = intent.get("target") or {}
            body = {name: target[name] for name in ("server", "tool") if name in target}
            body |= {name: intent[name] for name in ("toolName", "input") if name in intent}
            body["prompt"] = _prompt(row["status"], row["kind"], body)
            self._db.run(
                "INSERT INTO interactions VALUES (?, ?, ?, ?, ?, NULL) ON CONFLICT (id) DO UPDATE SET approved = NULL",
                effect_id,
                run.session_id,
                run.turn_id,
                "approval" if row["status"] == "pending" else "uncertain",
                dump(body),
            )
        self._db.run("UPDATE turns SET status = 'waiting' WHERE id = ?", run.turn_id)
        self._record.add("turn.waiting", run.place, interactions=self._sessions.open_interactions(run.turn_id))


def _prompt(status: str, kind: str, body: JsonObject) -> str:
    """What a person is asked."""
    if kind == "model":
        return "The outcome of a model call is not known. Run it again?"
    name = f"{body['server']} / {body['tool']}" if "server" in body else str(body.get("tool", body["toolName"]))
    return f"Approve {name}?" if status == "pending" else f"The outcome of {name} is not known. Run it again?"
