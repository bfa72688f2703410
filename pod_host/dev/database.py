"""The Runtime's state on disk: one SQLite file, one writer, every change in a transaction.

All of it runs on the event loop's thread: a transaction is then never interleaved with another, which is what makes
"journaled first" and "one session, one run" true. Each is a few rows and takes well under a millisecond in WAL mode;
a killed process loses nothing that was committed.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pod_host.contract.base import Json
from pod_host.contract.encoding import decode, encode
from pod_host.errors import ConfigurationError

SCHEMA_VERSION: Final = 3

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, body TEXT NOT NULL);
CREATE INDEX events_of_session ON events (session_id, seq);
CREATE TABLE warnings (text TEXT PRIMARY KEY, at REAL NOT NULL);

CREATE TABLE definitions (version INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT UNIQUE NOT NULL, body TEXT NOT NULL);

CREATE TABLE sessions (
  id TEXT PRIMARY KEY, number INTEGER NOT NULL, definition INTEGER NOT NULL, created REAL NOT NULL,
  state TEXT, mcp TEXT, lease_until REAL NOT NULL DEFAULT 0
);
CREATE TABLE messages (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, session_id TEXT NOT NULL, input TEXT NOT NULL, turn_id TEXT
);
CREATE TABLE turns (
  id TEXT PRIMARY KEY, session_id TEXT NOT NULL, number INTEGER NOT NULL, status TEXT NOT NULL, segment INTEGER NOT NULL,
  input TEXT NOT NULL, segment_input TEXT NOT NULL, start_state TEXT, trace TEXT NOT NULL, ready_at REAL NOT NULL,
  started_segment INTEGER NOT NULL DEFAULT -1, answered INTEGER NOT NULL DEFAULT 0, output TEXT, error TEXT
);
CREATE INDEX turns_of_session ON turns (session_id, number);
CREATE TABLE runs (
  id TEXT PRIMARY KEY, session_id TEXT NOT NULL, turn_id TEXT NOT NULL, segment INTEGER NOT NULL, epoch INTEGER NOT NULL,
  status TEXT NOT NULL, reason TEXT, started REAL NOT NULL
);
CREATE INDEX runs_of_session ON runs (session_id, status);

CREATE TABLE effects (
  id TEXT PRIMARY KEY, session_id TEXT NOT NULL, turn_id TEXT NOT NULL, segment INTEGER NOT NULL, run_id TEXT NOT NULL,
  kind TEXT NOT NULL, request_hash TEXT NOT NULL, intent TEXT NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL,
  outcome TEXT, started REAL NOT NULL, ended REAL
);
CREATE INDEX effects_of_turn ON effects (turn_id, segment);
CREATE TABLE interactions (
  id TEXT PRIMARY KEY, session_id TEXT NOT NULL, turn_id TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  approved INTEGER
);

CREATE TABLE edits (
  cursor INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, turn_id TEXT NOT NULL, body TEXT NOT NULL,
  dropped INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX edits_of_session ON edits (session_id, dropped, cursor);

CREATE TABLE model_usage (
  effect_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, turn_id TEXT NOT NULL, body TEXT NOT NULL
);

CREATE TABLE tool_answers (key TEXT PRIMARY KEY, body_hash TEXT NOT NULL, answer BLOB NOT NULL, at REAL NOT NULL);

CREATE TABLE memories (path TEXT PRIMARY KEY, content TEXT NOT NULL, turn_id TEXT NOT NULL, changed INTEGER NOT NULL);
CREATE TABLE turn_memory (turn_id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE wakes (session_id TEXT PRIMARY KEY, at REAL NOT NULL, note TEXT NOT NULL);

CREATE TABLE contents (sha256 TEXT PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE artifacts (
  id TEXT NOT NULL, version INTEGER NOT NULL, session_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
  content_type TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT NOT NULL, files TEXT, created REAL NOT NULL,
  PRIMARY KEY (id, version)
);
CREATE TABLE artifact_keys (
  session_id TEXT NOT NULL, key TEXT NOT NULL, artifact_id TEXT NOT NULL, version INTEGER NOT NULL,
  PRIMARY KEY (session_id, key)
);
"""


def dump(value: Json) -> str:
    """JSON text for a column. Raises ContractViolation for what is not JSON."""
    return encode(value).decode()


def load(text: str) -> Json:
    return decode(text)


class Database:
    """``state_dir/runtime.sqlite``, held by one process at a time."""

    def __init__(self, state_dir: Path) -> None:
        """Raises ConfigurationError when the directory cannot be used or another Runtime holds it."""
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise ConfigurationError([f"state directory {state_dir}: {fault.strerror}"]) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigurationError([f"state directory {state_dir}: another Runtime is running on it"]) from None
        path = state_dir / "runtime.sqlite"
        # It holds the join token: nobody else may read it, whatever the directory's mode. SQLite keeps the mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._depth = 0
        self._after: list[Callable[[], None]] = []
        self._make_schema(state_dir)

    def _make_schema(self, state_dir: Path) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            self.close()
            raise ConfigurationError(
                [f"state directory {state_dir}: made by another version of pod_host; choose a fresh one"]
            )

    def close(self) -> None:
        self._connection.close()
        os.close(self._lock)

    def run(self, sql: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def one(self, sql: str, *values: object) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: object) -> list[sqlite3.Row]:
        return self._connection.execute(sql, values).fetchall()

    def value(self, sql: str, *values: object) -> Any:
        """The first column of the first row, or None."""
        row = self.one(sql, *values)
        return row[0] if row is not None else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. Never awaited within; one inside another is part of it."""
        if self._depth:
            yield
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._depth = 1
        try:
            yield
        except BaseException:  # whatever it was, half a change must not stay
            self._after.clear()
            self._connection.execute("ROLLBACK")
            raise
        else:
            self._connection.execute("COMMIT")
        finally:
            self._depth = 0
        after, self._after = self._after, []
        for call in after:
            call()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Within a transaction: what is written in it goes when it raises, what came before stays."""
        told = len(self._after)
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:  # likewise
            del self._after[told:]
            self._connection.execute("ROLLBACK TO part")
            raise
        finally:
            self._connection.execute("RELEASE part")

    def after_commit(self, call: Callable[[], None]) -> None:
        """Run ``call`` once what is being written is on disk: nobody is told of what may be rolled back."""
        if self._depth:
            self._after.append(call)
        else:
            call()

    # --- Named single values ---------------------------------------------------------------------------------------------

    def get(self, name: str) -> Json:
        """A value of `set`, or None."""
        text = self.value("SELECT value FROM meta WHERE name = ?", name)
        return load(text) if text is not None else None

    def set(self, name: str, value: Json) -> None:
        self.run(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, dump(value)
        )
