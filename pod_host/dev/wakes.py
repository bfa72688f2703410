"""``schedule_wake``: a session that asks to be woken gets its own note as a message (Harness API v5, section 4)."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import ToolIntent, tool_failure
from pod_host.dev.database import Database
from pod_host.dev.record import Place, Record, iso
from pod_host.dev.runs import Run
from pod_host.dev.sessions import Sessions

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MOST_DAYS: Final = 366


class Wakes:
    """One wake per session; another replaces it. A wake that came due while the Runtime was down comes at its start."""

    def __init__(self, db: Database, record: Record, sessions: Sessions) -> None:
        self._db = db
        self._record = record
        self._sessions = sessions
        self._changed = asyncio.Event()

    def call(self, run: Run, intent: ToolIntent) -> JsonObject:
        """One call's outcome value."""
        given = intent.input
        if given == {"cancel": True}:
            gone = self._db.run("DELETE FROM wakes WHERE session_id = ?", run.session_id).rowcount
            return {"kind": "completed", "output": {"cancelled": bool(gone)}}
        try:
            at, note = _moment(given), given["note"]
            if not isinstance(note, str) or not note or set(given) - {"in", "at", "note"}:
                raise ValueError("note: a text is needed, and nothing but in or at beside it")
        except (ValueError, TypeError, KeyError) as fault:
            text = f"{{in | at, note}} or {{cancel: true}} is needed: {fault}"
            return tool_failure("wake.invalid", text)
        self._db.run(
            "INSERT INTO wakes VALUES (?, ?, ?) "
            "ON CONFLICT (session_id) DO UPDATE SET at = excluded.at, note = excluded.note",
            run.session_id,
            at,
            note,
        )
        self._record.add("wake.scheduled", Place(run.session_id, turn_id=run.turn_id), wakeAt=iso(at), note=note)
        self._db.after_commit(self._changed.set)
        return {"kind": "completed", "output": {"at": iso(at), "note": note}}

    async def watch(self) -> None:
        """Send each wake's note when it is due."""
        while True:
            self._changed.clear()
            for row in self._db.all("SELECT * FROM wakes WHERE at <= ? ORDER BY at", time.time()):
                with self._db.transaction():
                    self._db.run("DELETE FROM wakes WHERE session_id = ?", row["session_id"])
                    self._record.add("wake.fired", Place(row["session_id"]), note=row["note"])
                    self._sessions.post(row["session_id"], {"text": row["note"], "metadata": {"wake": True}})
            due = self._db.value("SELECT min(at) FROM wakes")
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - time.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue


def _moment(given: Json) -> float:
    """When: ``in`` is seconds or a text such as ``90s``, ``15m``, ``2h``, ``1d``; ``at`` is ISO 8601."""
    if not isinstance(given, dict) or ("in" in given) == ("at" in given):
        raise ValueError("exactly one of in and at")
    now = time.time()
    if "at" in given:
        at = datetime.fromisoformat(given["at"])
        moment = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    else:
        moment = now + _seconds(given["in"])
    if moment > now + _MOST_DAYS * 86400:
        raise ValueError(f"at most {_MOST_DAYS} days ahead")
    return moment


def _seconds(given: Json) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and given > 0:
        return float(given)
    if isinstance(given, str) and (found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd])", given.strip())):
        return float(found.group(1)) * _UNITS[found.group(2)]
    raise ValueError(f"in: {given!r} is no time such as 90s, 15m, 2h or 1d")
