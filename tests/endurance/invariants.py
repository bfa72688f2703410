"""What must be true after any run of faults: of the record, of the ledger, of the disk, of the tools outside."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pod_host.contract.base import Json, JsonObject
from tests.endurance.load import Exec, Turn
from tests.endurance.plans import TIMED_OUT, Call
from tests.endurance.witness import Witness

TOOL_ATTEMPTS: Final = 3  # of the Runtime: how often a call that a gate lost is delivered
TURN_FAILURES: Final = {
    "model.transient",  # the gate did not answer, again and again
    "turn.deadline",
}


@dataclass(frozen=True)
class Ran:
    """One planned call, and what became of it. ``outcome``: None when nobody was told. ``asked``: whether it can have run at
    all."""

    call: Call
    outcome: JsonObject | None
    asked: bool = True


@dataclass
class Rows:
    """How far the tables were read: effects and events of the turns to come are behind that."""

    effects: int = 0
    events: int = 0


class Record:
    """The Runtime's own tables from ``rows`` on, read while it rests: what they say of the turns ``turn_ids``."""

    def __init__(self, database: sqlite3.Connection, turn_ids: set[str], rows: Rows) -> None:
        self._turn_ids = turn_ids
        self.effects: dict[str, sqlite3.Row] = {}
        self.by_call: dict[str, list[sqlite3.Row]] = defaultdict(list)
        for row in database.execute("SELECT rowid AS number, * FROM effects WHERE rowid > ?", (rows.effects,)):
            rows.effects = row["number"]
            if row["turn_id"] in turn_ids:
                self.effects[row["id"]] = row
                if row["kind"] == "tool":
                    call_id = json.loads(row["intent"])["context"]["callId"]
                    self.by_call[call_id.removeprefix("call-")].append(row)
        self.ended: Counter[str] = Counter()  # events that tell of an effect's end, by effect
        self.ends: dict[str, list[str]] = defaultdict(list)  # of turns
        for seq, body in database.execute("SELECT seq, body FROM events WHERE seq > ?", (rows.events,)):
            rows.events = seq
            event = json.loads(body)
            if event.get("turnId") not in turn_ids:
                continue
            if event["type"] in ("tool.completed", "message.assistant", "model.failed"):
                self.ended[event["effectId"]] += 1
            elif event["type"] in ("turn.completed", "turn.failed", "turn.cancelled"):
                self.ends[event["turnId"]].append(event["type"])
        self.turns = {row["id"]: row for row in database.execute("SELECT * FROM turns") if row["id"] in turn_ids}
        self.held = [tuple(row) for row in database.execute("SELECT id, turn_id FROM runs WHERE status = 'held'")]

    def check(self, witness: Witness) -> Iterator[str]:
        for effect_id, outcome in witness.acknowledged.items():
            row = self.effects.get(effect_id)
            if row is None:
                yield f"{effect_id} was acknowledged and is not in the record"
            elif row["status"] != "completed" or json.loads(row["outcome"]) != outcome:
                yield f"{effect_id} was acknowledged as {_short(outcome)}, the record has {row['status']}"
        for effect_id in witness.changed:
            yield f"{effect_id} was acknowledged twice, with two outcomes"
        for run_id, times in witness.ended.items():
            if times > 1:
                yield f"run {run_id}: {times} outputs were acknowledged"
        for effect_id, row in self.effects.items():
            told = self.ended[effect_id]
            if told != (row["status"] == "completed"):
                yield f"{effect_id} is {row['status']}, and the record tells of its end {told} times"
            if _kind(row) in ("sandbox", "harness") and witness.executed[effect_id] > 1:
                yield f"{effect_id}: core said execute {witness.executed[effect_id]} times"
            if row["attempts"] > TOOL_ATTEMPTS and row["kind"] == "tool":
                yield f"{effect_id} was delivered {row['attempts']} times"
        yield from self._check_turns()
        for run_id, turn_id in self.held:
            yield f"run {run_id} of {turn_id} is still held"

    def _check_turns(self) -> Iterator[str]:
        for turn_id in self._turn_ids:
            ends = self.ends[turn_id]
            if len(ends) != 1:
                yield f"{turn_id} ended {len(ends)} times: {ends}"
            row = self.turns.get(turn_id)
            if row is None:
                yield f"{turn_id} is not in the record"
            elif row["status"] == "failed":
                error = json.loads(row["error"])
                if error["code"] not in TURN_FAILURES:
                    yield f"{turn_id} failed: {_short(error)}"


def check_turn(turn: Turn, row: sqlite3.Row) -> Iterator[str]:
    if row["status"] == "completed" and json.loads(row["output"]) != turn.plan.answer:
        yield f"{turn.id} ({turn.plan.key}) answered {_short(json.loads(row['output']))}"


def check_transcripts(
    database: sqlite3.Connection, sessions: set[str], transcript: dict[str, list[JsonObject]]
) -> Iterator[str]:
    """Each turn that completed is in its session's transcript once, in order; no other is."""
    for session in sessions:
        completed = [
            row[0]
            for row in database.execute(
                "SELECT id FROM turns WHERE session_id = ? AND status = 'completed' ORDER BY number", (session,)
            )
        ]
        for kind in ("input", "final"):
            found = [entry["turnId"] for entry in transcript[session] if entry["kind"] == kind]
            if found != completed:
                yield f"{session}: {kind} entries of {found}, completed turns {completed}"


def ran_of_turns(turns: Iterable[Turn], record: Record) -> Iterator[Ran]:
    for turn in turns:
        for step in turn.plan.steps:
            for call in step:
                rows = record.by_call.get(call.key, [])
                if not rows:
                    yield Ran(call, None, asked=False)
                for row in rows:
                    yield Ran(call, json.loads(row["outcome"])["value"] if row["outcome"] else None)


def ran_of_execs(execs: Iterable[Exec]) -> Iterator[Ran]:
    return (Ran(made.call, made.answer) for made in execs)


class Disk:
    """The ledger and the workspace."""

    def __init__(self, ledger: Path) -> None:
        self.marks: Counter[str] = Counter()
        for path in ledger.iterdir():
            self.marks.update(path.read_text().split())

    def check(self, calls: list[Ran]) -> Iterator[str]:
        edited = {ran.call.leaves[0] for ran in calls if ran.call.tool == "edit" and ran.call.leaves}
        for ran in calls:
            match ran.call.tool:
                case "bash":
                    yield from self._check_command(ran)
                case "write" if ran.call.leaves and ran.call.leaves[0] not in edited:
                    yield from self._check_written(ran)
                case "edit":
                    yield from self._check_edited(ran, calls)

    def _check_command(self, ran: Ran) -> Iterator[str]:
        times = self.marks[ran.call.key]
        if times > 1 or (times and not ran.asked):
            yield f"{ran.call.key}: the command ran {times} times"
        elif _completed(ran.outcome):
            assert ran.outcome is not None
            code = ran.outcome["output"]["exitCode"]
            if code == ran.call.exits and not times and code != TIMED_OUT:
                yield f"{ran.call.key}: the command was answered with exit code {code}, and never ran"
            if code not in (ran.call.exits, 130, 99, 137, 143, TIMED_OUT):
                yield f"{ran.call.key}: exit code {code} in place of {ran.call.exits}: {_short(ran.outcome)}"

    def _check_written(self, ran: Ran) -> Iterator[str]:
        assert ran.call.leaves is not None
        path, content = ran.call.leaves
        found = _read(path)
        if _completed(ran.outcome) and found != content:
            yield f"{ran.call.key}: the write was answered, {path} holds {_short(found)}"
        elif found not in (None, content):
            yield f"{ran.call.key}: {path} is half written"

    def _check_edited(self, ran: Ran, calls: list[Ran]) -> Iterator[str]:
        """Of the file as it was before, or edited once."""
        assert ran.call.leaves is not None
        path, after = ran.call.leaves
        written = (other.call.leaves for other in calls if other.call.tool == "write")
        before = next((leaves[1] for leaves in written if leaves and leaves[0] == path), None)
        found = _read(path)
        if _completed(ran.outcome) and found != after:
            yield f"{ran.call.key}: the edit was answered, {path} holds {_short(found)}"
        elif found not in (None, before, after) or (found == after and not ran.asked):
            yield f"{ran.call.key}: {path} holds {_short(found)}"


def check_remote(calls: list[Ran], came: dict[str, list[str]], tools: tuple[str, ...], record: Record) -> Iterator[str]:
    """A call outside is delivered at least once and at most so often, always under its one key."""
    for ran in calls:
        if ran.call.tool not in tools:
            continue
        keys = came.get(ran.call.key, [])
        known = {row["id"] for row in record.by_call.get(ran.call.key, [])}
        if set(keys) - known:
            yield f"{ran.call.key}: came under {set(keys) - known}, which the record does not know"
        if len(set(keys)) > 1:
            yield f"{ran.call.key}: came under {len(set(keys))} keys"
        if len(keys) > TOOL_ATTEMPTS:
            yield f"{ran.call.key}: was delivered {len(keys)} times"
        if _completed(ran.outcome) and not keys:
            yield f"{ran.call.key}: was answered, and never came"


def _completed(outcome: JsonObject | None) -> bool:
    return outcome is not None and outcome.get("kind") == "completed"


def _kind(row: sqlite3.Row) -> str:
    target = json.loads(row["intent"]).get("target") if row["kind"] == "tool" else None
    return str(target["kind"]) if target else "model"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return None


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]} ({len(text)})"
