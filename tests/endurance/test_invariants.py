"""The invariants are no empty words: each is told when it is broken, and only then."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pod_host.contract.base import JsonObject
from tests.endurance.invariants import Disk, Ran, Record, Rows, check_remote, check_transcripts, check_turn
from tests.endurance.load import Turn
from tests.endurance.plans import Call, Plan
from tests.endurance.witness import Conversation, Witness

TURN = "turn_1"
EFFECT = f"{TURN}:0:tool:step-1/0"
DONE: JsonObject = {"value": {"kind": "completed", "output": {"exitCode": 0}}}


class Tables:
    """The record of one turn with one command, all as it should be, until a test changes it."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.row_factory = sqlite3.Row
        self.database.executescript(
            "CREATE TABLE effects (id, turn_id, kind, intent, status, attempts, outcome);"
            "CREATE TABLE events (seq INTEGER PRIMARY KEY, body);"
            "CREATE TABLE turns (id, session_id, number, status, output, error);"
            "CREATE TABLE runs (id, turn_id, status);"
        )
        intent = {"context": {"callId": "call-k"}, "target": {"kind": "sandbox"}}
        self.run(
            "INSERT INTO effects VALUES (?, ?, 'tool', ?, 'completed', 1, ?)",
            EFFECT,
            TURN,
            json.dumps(intent),
            json.dumps(DONE),
        )
        self.event("tool.completed", effectId=EFFECT)
        self.event("turn.completed")
        self.run("INSERT INTO turns VALUES (?, 's', 1, 'completed', ?, NULL)", TURN, json.dumps("end of p"))
        self.witness = Witness(acknowledged={EFFECT: DONE})
        self.witness.executed[EFFECT] = 1

    def run(self, sql: str, *values: Any) -> None:
        self.database.execute(sql, values)

    def event(self, kind: str, **members: Any) -> None:
        body = json.dumps({"type": kind, "turnId": TURN, **members})
        self.run("INSERT INTO events (body) VALUES (?)", body)

    def record(self) -> Record:
        return Record(self.database, {TURN}, Rows())

    def wrong(self) -> list[str]:
        return list(self.record().check(self.witness))


def test_a_good_record_is_good_and_is_read_once() -> None:
    tables = Tables()
    assert tables.wrong() == []
    rows = Rows()
    assert Record(tables.database, {TURN}, rows).effects
    assert not Record(tables.database, {TURN}, rows).effects


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DELETE FROM effects", "is not in the record"),
        ("UPDATE effects SET status = 'invoking'", "the record has invoking"),
        ("UPDATE effects SET outcome = '{}'", "was acknowledged as"),
        ("UPDATE effects SET attempts = 4", "was delivered 4 times"),
        ("DELETE FROM events WHERE seq = 1", "tells of its end 0 times"),
        ("INSERT INTO events SELECT 9, body FROM events WHERE seq = 1", "tells of its end 2 times"),
        ("INSERT INTO events SELECT 9, body FROM events WHERE seq = 2", "ended 2 times"),
        ("DELETE FROM events WHERE seq = 2", "ended 0 times"),
        ("DELETE FROM turns", "turn_1 is not in the record"),
        ("UPDATE turns SET status = 'failed', error = '{\"code\": \"internal\"}'", "failed: {'code': 'internal'}"),
        ("INSERT INTO runs VALUES ('r', 't', 'held')", "is still held"),
    ],
)
def test_what_is_wrong_with_a_record_is_told(sql: str, told: str) -> None:
    tables = Tables()
    tables.run(sql)
    assert any(told in line for line in tables.wrong()), tables.wrong()


def test_a_command_that_core_let_run_twice_and_two_outcomes_of_one_effect_are_told() -> None:
    tables = Tables()
    talk = Conversation(tables.witness)
    for number, outcome in enumerate([DONE, {"value": "another"}]):
        talk.from_host({"t": "req", "id": number, "m": "effect.outcome", "p": {"effectId": EFFECT}})
        answer = {"status": "completed", "outcome": outcome}
        talk.from_core({"t": "res", "id": number, "ok": True, "r": answer})
    talk.from_host({"t": "req", "id": 7, "m": "effect.intent", "p": {"effect": {"effectId": EFFECT}}})
    talk.from_core({"t": "res", "id": 7, "ok": True, "r": {"status": "execute"}})
    assert tables.wrong() == [
        f"{EFFECT} was acknowledged twice, with two outcomes",
        f"{EFFECT}: core said execute 2 times",
    ]


def test_an_answer_of_another_turn_is_told() -> None:
    tables = Tables()
    row = tables.record().turns[TURN]
    assert list(check_turn(Turn(Plan("p", ()), "s", TURN), row)) == []
    assert "answered 'end of p'" in next(check_turn(Turn(Plan("q", ()), "s", TURN), row))


def test_a_transcript_without_a_completed_turn_or_with_another_is_told() -> None:
    tables = Tables()
    entries: list[JsonObject] = [{"kind": "input", "turnId": TURN}, {"kind": "final", "turnId": TURN}]
    assert list(check_transcripts(tables.database, {"s"}, {"s": entries})) == []
    assert len(list(check_transcripts(tables.database, {"s"}, {"s": entries * 2}))) == 2
    assert len(list(check_transcripts(tables.database, {"s"}, {"s": entries[:1]}))) == 1


class Place:
    def __init__(self, base: Path) -> None:
        self.ledger = base / "ledger"
        self.ledger.mkdir()
        self.file = base / "file"
        self.command = Call("k", "bash", {}, exits=0)
        self.write = Call("w", "write", {}, leaves=(str(self.file), "old"))
        self.edit = Call("e", "edit", {}, leaves=(str(self.file), "old+"))

    def wrong(self, *calls: Ran) -> list[str]:
        return list(Disk(self.ledger).check(list(calls)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def ended(code: int = 0) -> JsonObject:
    return {"kind": "completed", "output": {"exitCode": code}}


def test_a_command_runs_once_when_it_was_answered_and_at_most_once_when_not(place: Place) -> None:
    assert place.wrong(Ran(place.command, None)) == []
    assert "never ran" in place.wrong(Ran(place.command, ended()))[0]
    (place.ledger / "a").write_text("k\n")
    assert place.wrong(Ran(place.command, ended()), Ran(place.command, None)) == []
    assert "in place of 0" in place.wrong(Ran(place.command, ended(5)))[0]
    assert "ran 1 times" in place.wrong(Ran(place.command, None, asked=False))[0]
    (place.ledger / "b").write_text("k\n")
    assert "ran 2 times" in place.wrong(Ran(place.command, ended()))[0]


def test_a_write_that_was_answered_is_on_the_disk_and_any_is_whole(place: Place) -> None:
    assert place.wrong(Ran(place.write, None)) == []
    assert "was answered" in place.wrong(Ran(place.write, {"kind": "completed"}))[0]
    place.file.write_text("o")
    assert "half written" in place.wrong(Ran(place.write, None))[0]
    place.file.write_text("old")
    assert place.wrong(Ran(place.write, {"kind": "completed"})) == []


def test_an_edit_is_applied_once(place: Place) -> None:
    write, edit = Ran(place.write, {"kind": "completed"}), Ran(place.edit, {"kind": "completed"})
    place.file.write_text("old+")
    assert place.wrong(write, edit) == []
    assert place.wrong(write, Ran(place.edit, None)) == []
    assert place.wrong(write, Ran(place.edit, None, asked=False)) != []
    place.file.write_text("old")
    assert place.wrong(write, edit) != []
    assert place.wrong(write, Ran(place.edit, None)) == []
    place.file.write_text("old++")
    assert place.wrong(write, Ran(place.edit, None)) != []


def test_a_call_outside_comes_at_least_once_at_most_so_often_and_under_its_key() -> None:
    record = Tables().record()

    def wrong(outcome: JsonObject | None, *keys: str) -> list[str]:
        return list(check_remote([Ran(Call("k", "order", {}), outcome)], {"k": list(keys)}, ("order",), record))

    assert wrong({"kind": "completed"}, EFFECT, EFFECT) == []
    assert wrong(None) == []
    assert "never came" in wrong({"kind": "completed"})[0]
    assert "does not know" in wrong(None, "another")[0]
    assert "delivered 4 times" in wrong(None, *[EFFECT] * 4)[0]
