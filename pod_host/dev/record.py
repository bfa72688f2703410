"""The record: what happened, as events with a rising ``seq``, kept on disk and followed live."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pod_host.contract.base import Json, JsonObject
from pod_host.dev.database import Database, dump, load

log = logging.getLogger(__name__)

PAGE = 500  # events read in one go by a follower


def iso(moment: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Place:
    """What an event is about: its session, turn and run, as far as it has them."""

    session_id: str | None = None
    turn_id: str | None = None
    run_id: str | None = None


class Record:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._news = asyncio.Event()
        self._closed = False

    def add(
        self,
        kind: str,
        place: Place | None = None,
        *,
        claimed: JsonObject | None = None,
        **payload: Json,
    ) -> None:
        """Append one event; members that are None are left out. ``claimed`` is a harness's own payload: it cannot pass for
        a member of core's. Part of the caller's transaction, if there is one."""
        body: JsonObject = {"at": iso(time.time()), "type": kind}
        place = place or Place()
        named = {"sessionId": place.session_id, "turnId": place.turn_id, "runId": place.run_id, **payload}
        body |= {name: value for name, value in named.items() if value is not None}
        body = {**(claimed or {}), **body}
        body.pop("seq", None)
        self._db.run("INSERT INTO events (session_id, body) VALUES (?, ?)", place.session_id, dump(body))
        self._db.after_commit(self._tell)

    def warn(self, text: str, *, session_id: str | None = None) -> None:
        """Say once what only a proposed part of the contract forbids, or what a harness author should know."""
        with self._db.transaction():
            new = self._db.run("INSERT OR IGNORE INTO warnings VALUES (?, ?)", text, time.time()).rowcount
            if new:
                log.warning("%s", text)
                self.add("warning", Place(session_id), text=text)

    def warnings(self) -> list[JsonObject]:
        return [
            {"at": iso(row["at"]), "text": row["text"]}
            for row in self._db.all("SELECT * FROM warnings ORDER BY at, text")
        ]

    async def follow(self, session_id: str | None, after: int, *, follow: bool) -> AsyncIterator[JsonObject]:
        """Events with ``seq`` above ``after``: one session's, or all. With ``follow`` it goes on until the Runtime stops."""
        while True:
            news = self._news
            page = self._page(session_id, after)
            for event in page:
                after = event["seq"]
                yield event
            if len(page) == PAGE:
                continue
            if not follow or self._closed:
                return
            await news.wait()

    def close(self) -> None:
        """End every follower."""
        self._closed = True
        self._tell()

    def _page(self, session_id: str | None, after: int) -> list[JsonObject]:
        if session_id is None:
            rows = self._db.all("SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?", after, PAGE)
        else:
            rows = self._db.all(
                "SELECT seq, body FROM events WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
                session_id,
                after,
                PAGE,
            )
        return [{"seq": row["seq"], **load(row["body"])} for row in rows]

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
