"""The transcript as core keeps it: the edits of every session, folded when they are read (Harness API v5, section 6)."""

from __future__ import annotations

from pod_host.contract.base import JsonObject
from pod_host.contract.transcript import fold
from pod_host.dev.database import Database, dump, load

NONE_YET = -1


class Transcripts:
    """A cursor names one state of one transcript for good: it is the newest edit that counts, and edits are dropped only
    from the end."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._folded: dict[str, tuple[int, list[JsonObject]]] = {}

    def cursor(self, session_id: str) -> int:
        newest = self._db.value("SELECT max(cursor) FROM edits WHERE session_id = ? AND NOT dropped", session_id)
        return NONE_YET if newest is None else int(newest)

    def entries(self, session_id: str) -> list[JsonObject]:
        """The transcript as it stands; not to be changed by the caller."""
        cursor = self.cursor(session_id)
        known, entries = self._folded.get(session_id, (NONE_YET, []))
        if known > cursor:
            known, entries = NONE_YET, []  # edits were dropped
        if known != cursor:
            newer = self._db.all(
                "SELECT body FROM edits WHERE session_id = ? AND NOT dropped AND cursor > ? ORDER BY cursor",
                session_id,
                known,
            )
            entries = fold(entries, (load(row["body"]) for row in newer))
            self._folded[session_id] = (cursor, entries)
        return entries

    def append(self, session_id: str, turn_id: str, updates: list[JsonObject]) -> None:
        """Record the edits of one segment. Raises ContractViolation when one does not fit what is there."""
        folded = fold(self.entries(session_id), updates)
        for update in updates:
            self._db.run(
                "INSERT INTO edits (session_id, turn_id, body) VALUES (?, ?, ?)", session_id, turn_id, dump(update)
            )
        cursor = self.cursor(session_id)
        self._db.after_commit(lambda: self._folded.update({session_id: (cursor, folded)}))

    def drop(self, turn_id: str) -> None:
        """A turn that failed or was cancelled leaves nothing in the transcript."""
        self._db.run("UPDATE edits SET dropped = 1 WHERE turn_id = ?", turn_id)
