"""The database: all or nothing, and who is told when."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from pod_host.dev.database import Database
from pod_host.errors import ConfigurationError


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "state")
    yield database
    database.close()


class Fault(Exception):
    pass


def write_and_fault(db: Database, name: str, told: list[str]) -> None:
    db.set(name, 1)
    db.after_commit(lambda: told.append(name))
    raise Fault


def test_what_was_written_in_a_transaction_that_raised_is_gone(db: Database) -> None:
    told: list[str] = []
    with pytest.raises(Fault), db.transaction():
        write_and_fault(db, "a", told)
    assert (db.get("a"), told) == (None, [])
    with db.transaction():
        db.set("b", {"x": None})
        with db.transaction():  # part of the one around it
            db.after_commit(lambda: told.append("b"))
        assert told == []
    assert (db.get("b"), told) == ({"x": None}, ["b"])


def test_a_savepoint_undoes_its_own_part_alone(db: Database) -> None:
    told: list[str] = []
    with db.transaction():
        db.set("kept", 1)
        db.after_commit(lambda: told.append("kept"))
        with pytest.raises(Fault), db.savepoint():
            write_and_fault(db, "undone", told)
    assert (db.get("kept"), db.get("undone"), told) == (1, None, ["kept"])


def test_a_lone_surrogate_is_kept(db: Database) -> None:
    db.set("a", "\ud83d")
    assert db.get("a") == "\ud83d"


def test_another_versions_database_is_not_touched(tmp_path: Path) -> None:
    Database(tmp_path).close()
    with sqlite3.connect(tmp_path / "runtime.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="another version of pod_host"):
        Database(tmp_path)


def test_a_state_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Not a directory"):
        Database(tmp_path / "file" / "state")
