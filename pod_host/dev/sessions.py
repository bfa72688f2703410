"""Sessions, their messages and their turns, as rows: who is next, and what a client sees of it.

A session has at most one turn that is not over: ``queued`` (it wants a run), ``running`` (a run holds it) or ``waiting``
(for a person). Messages that come meanwhile wait, and the next turn takes them all.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from pod_host.contract.base import Json, JsonObject, Sent, first_fault
from pod_host.contract.model_call import MediaPart, TextPart
from pod_host.dev.database import Database, dump, load
from pod_host.dev.definitions import Definition, Definitions
from pod_host.dev.record import Place, Record, iso
from pod_host.dev.transcripts import Transcripts
from pod_host.errors import PodHostError

_ACTIVE_SQL: Final = "status IN ('queued', 'running', 'waiting')"


class NorthRefusal(PodHostError):
    """A client asked for what cannot be. ``status`` is HTTP's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class TextInput(Sent):
    text: str
    metadata: JsonObject | None = None


class ContentInput(Sent):
    content: list[TextPart | MediaPart]
    metadata: JsonObject | None = None


_INPUT: Final[TypeAdapter[str | TextInput | ContentInput]] = TypeAdapter(str | TextInput | ContentInput)


class Sessions:
    def __init__(
        self, db: Database, record: Record, definitions: Definitions, current: Definition, transcripts: Transcripts
    ) -> None:
        self._db = db
        self._record = record
        self._definitions = definitions
        self._current = current
        self._transcripts = transcripts
        self.on_ready: Callable[[], None] = lambda: None

    # --- What a client does ----------------------------------------------------------------------------------------------

    def open(self) -> str:
        """A new session of the Agent as it is now."""
        session_id = _new_id("ses")
        self._db.run(
            "INSERT INTO sessions (id, number, definition, created) "
            "VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM sessions), ?, ?)",
            session_id,
            self._current.version,
            time.time(),
        )
        return session_id

    def post(self, session_id: str, given: Json) -> tuple[str, str | None]:
        """A message: its id, and its turn's when one starts with it. Raises NorthRefusal."""
        try:
            _INPUT.validate_python(given)
        except ValidationError as fault:
            raise NorthRefusal(
                400, "invalid_request", f"input: a text, {{text}} or {{content}} is needed ({first_fault(fault)})"
            ) from None
        self.row(session_id)
        message_id = _new_id("msg")
        with self._db.transaction():
            self._db.run(
                "INSERT INTO messages (id, session_id, input) VALUES (?, ?, ?)", message_id, session_id, dump(given)
            )
            return message_id, self.begin_next(session_id)

    def answer(self, session_id: str, interaction_id: str, approved: bool) -> None:
        """A person's answer. When it was the last one that the turn waits for, the segment is run again."""
        with self._db.transaction():
            row = self._db.one(
                "SELECT * FROM interactions WHERE id = ? AND session_id = ?", interaction_id, self.row(session_id)["id"]
            )
            turn = self.turn(row["turn_id"]) if row else None
            if row is None or turn is None:
                raise NorthRefusal(404, "not_found", f"no interaction {interaction_id} in this session")
            if turn["status"] != "waiting" or row["approved"] is not None:
                raise NorthRefusal(
                    409, "conflict", f"interaction {interaction_id} is answered already or its turn is over"
                )
            self._db.run("UPDATE interactions SET approved = ? WHERE id = ?", int(approved), interaction_id)
            self._record.add(
                "interaction.answered",
                Place(session_id, turn_id=turn["id"]),
                interactionId=interaction_id,
                approved=approved,
            )
            if not self.open_interactions(turn["id"]):
                self._db.run("UPDATE turns SET answered = 1 WHERE id = ?", turn["id"])
                self.queue(turn["id"])

    # --- What the parts of core ask --------------------------------------------------------------------------------------

    def row(self, session_id: str) -> sqlite3.Row:
        """Raises NorthRefusal 404."""
        row = self._db.one("SELECT * FROM sessions WHERE id = ?", session_id)
        if row is None:
            raise NorthRefusal(404, "not_found", f"no session {session_id}")
        return row

    def turn(self, turn_id: str) -> sqlite3.Row:
        row = self._db.one("SELECT * FROM turns WHERE id = ?", turn_id)
        if row is None:
            raise LookupError(turn_id)
        return row

    def definition(self, session_id: str) -> Definition:
        return self._definitions.get(self.row(session_id)["definition"])

    def active_turn(self, session_id: str) -> sqlite3.Row | None:
        return self._db.one(f"SELECT * FROM turns WHERE session_id = ? AND {_ACTIVE_SQL}", session_id)

    def begin_next(self, session_id: str) -> str | None:
        """Start a turn with the messages that wait, unless one is under way. Within the caller's transaction."""
        waiting = self._db.all(
            "SELECT seq, input FROM messages WHERE session_id = ? AND turn_id IS NULL ORDER BY seq", session_id
        )
        if not waiting or self.active_turn(session_id) is not None:
            return None
        inputs = [load(row["input"]) for row in waiting]
        given: Json = inputs[0] if len(inputs) == 1 else {"kind": "messages", "messages": inputs}
        turn_id = _new_id("turn")
        self._db.run(
            "INSERT INTO turns (id, session_id, number, status, segment, input, segment_input, start_state, trace, ready_at) "
            "VALUES (?, ?, (SELECT coalesce(max(number), 0) + 1 FROM turns WHERE session_id = ?), 'queued', 0, ?, ?, "
            "(SELECT state FROM sessions WHERE id = ?), ?, ?)",
            turn_id,
            session_id,
            session_id,
            dump(given),
            dump(given),
            session_id,
            f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
            time.time(),
        )
        self._db.run(
            "UPDATE messages SET turn_id = ? WHERE session_id = ? AND turn_id IS NULL AND seq <= ?",
            turn_id,
            session_id,
            waiting[-1]["seq"],
        )
        self._record.add("turn.queued", Place(session_id, turn_id=turn_id), input=given)
        self._db.after_commit(self.on_ready)
        return turn_id

    def queue(self, turn_id: str) -> None:
        """The turn wants a run (again)."""
        self._db.run("UPDATE turns SET status = 'queued', ready_at = ? WHERE id = ?", time.time(), turn_id)
        self._db.after_commit(self.on_ready)

    def end_turn(
        self,
        turn_id: str,
        status: Literal["completed", "failed", "cancelled"],
        *,
        output: Json = None,
        error: JsonObject | None = None,
        run_id: str | None = None,
    ) -> None:
        """The turn is over, and the next may begin. Unless it completed, nothing of it stays but the record: its edits
        are dropped and the session's state is what it was at its start (section 7). Within the caller's transaction."""
        turn = self.turn(turn_id)
        place = Place(turn["session_id"], turn_id, run_id)
        if status == "completed":
            self._record.add("turn.completed", place, output=output)
        else:
            self._transcripts.drop(turn_id)
            self._db.run("UPDATE sessions SET state = ? WHERE id = ?", turn["start_state"], turn["session_id"])
            if status == "failed":
                self._record.add("turn.failed", place, error=error)
            else:
                self._record.add("turn.cancelled", place, reason="cancel")
        self._db.run(
            "UPDATE turns SET status = ?, output = ?, error = ? WHERE id = ?",
            status,
            dump(output) if status == "completed" else None,
            dump(error) if error is not None else None,
            turn_id,
        )
        self.begin_next(turn["session_id"])

    def open_interactions(self, turn_id: str) -> list[JsonObject]:
        rows = self._db.all("SELECT * FROM interactions WHERE turn_id = ? AND approved IS NULL ORDER BY rowid", turn_id)
        return [{"id": row["id"], "kind": row["kind"], **load(row["body"])} for row in rows]

    # --- What a client sees ----------------------------------------------------------------------------------------------

    def listed(self) -> list[JsonObject]:
        return [
            {"sessionId": row["id"], "state": self._state(row["id"]), "createdAt": iso(row["created"])}
            for row in self._db.all("SELECT * FROM sessions ORDER BY number")
        ]

    def view(self, session_id: str) -> JsonObject:
        row = self.row(session_id)
        turns = self._db.all("SELECT * FROM turns WHERE session_id = ? ORDER BY number", session_id)
        active = self.active_turn(session_id)
        return {
            "sessionId": session_id,
            "state": self._state(session_id),
            "createdAt": iso(row["created"]),
            "harness": self.definition(session_id).harness_id,
            "turns": [_turn_view(turn) for turn in turns],
            "interactions": self.open_interactions(active["id"]) if active is not None else [],
        }

    def _state(self, session_id: str) -> str:
        turn = self.active_turn(session_id)
        if turn is None:
            return "idle"
        return "waiting" if turn["status"] == "waiting" else "running"


def _turn_view(turn: sqlite3.Row) -> JsonObject:
    view: JsonObject = {
        "turnId": turn["id"],
        "status": turn["status"],
        "segment": turn["segment"],
        "input": load(turn["input"]),
    }
    for name in ("output", "error"):
        if turn[name] is not None:
            view[name] = load(turn[name])
    return view


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
