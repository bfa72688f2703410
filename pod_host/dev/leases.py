"""Runs: who holds which segment, for how long, and what ends it (Harness API v5, sections 2 and 8).

A run is bound to the connection that leased it. Its lease is the session's: it outlives a lost connection, so that two
owners never work on one session, and lapses when nobody renews it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable

from pod_host.contract.base import JsonObject
from pod_host.contract.work import CancelReason
from pod_host.dev.authority import RUN, Authority
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database
from pod_host.dev.record import Place, Record, iso
from pod_host.dev.runs import PAST_DEADLINE, Holder, Run
from pod_host.dev.sessions import Sessions
from pod_host.errors import RuntimeRefusal

log = logging.getLogger(__name__)


class Leases:
    def __init__(
        self, config: RuntimeConfig, db: Database, record: Record, authority: Authority, sessions: Sessions
    ) -> None:
        self._config = config
        self._db = db
        self._record = record
        self._authority = authority
        self._sessions = sessions
        self._waiting: deque[tuple[Holder, asyncio.Future[tuple[Run, JsonObject]]]] = deque()
        self._live: dict[str, Run] = {}
        self._offered: dict[str, float] = {}  # turns that want a run: since when this offer stands
        self._changed = asyncio.Event()
        self._advancing = False
        self._stopping = False
        self.start_of: Callable[[Run], JsonObject]
        self.on_over: list[Callable[[Run], None]] = []
        self._recover()

    def _recover(self) -> None:
        """After a start: the connections of the runs that were held are gone; their leases lapse in their own time."""
        with self._db.transaction():
            self._shorten()
            for run in self._db.all("SELECT * FROM runs WHERE status = 'held'"):
                self._db.run("UPDATE runs SET status = 'over', reason = 'connection.lost' WHERE id = ?", run["id"])
                self._record.add(
                    "run.lost",
                    Place(run["session_id"], run["turn_id"], run["id"]),
                    reason="connection.lost",
                )
                self._db.run(
                    "UPDATE turns SET status = 'queued', ready_at = ? WHERE id = ? AND status = 'running'",
                    time.time(),
                    run["turn_id"],
                )

    # --- Leasing ---------------------------------------------------------------------------------------------------------

    async def lease(self, holder: Holder) -> JsonObject:
        """Wait until there is a run for ``holder``. Cancelled: the waiter goes."""
        offer: asyncio.Future[tuple[Run, JsonObject]] = asyncio.get_running_loop().create_future()
        waiter = (holder, offer)
        self._waiting.append(waiter)
        try:
            self.advance()
            run, start = await offer
        except asyncio.CancelledError:
            if offer.done() and not offer.cancelled():  # granted in the moment it was given up: nobody has the run
                self.release(holder, offer.result()[0].id, "shutdown")
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        grant = {
            "runId": run.id,
            "sessionId": run.session_id,
            "turnId": run.turn_id,
            "epoch": run.epoch,
            **self._token(run),
        }
        return {"run": grant, "input": start}

    def advance(self) -> None:
        """Offer every turn that wants a run and may have one, oldest first, to the leases that wait, oldest first."""
        if self._advancing:
            return  # the loop below sees what changed
        self._advancing = True
        try:
            while self._advance_one():
                continue
        finally:
            self._advancing = False
        self._changed.set()

    def _advance_one(self) -> bool:
        """Grant one run; False when there is none to grant. What is ready is looked up anew each time: it changes with
        every grant."""
        now = time.time()
        for turn in self._ready(now):
            taker = self._taker(self._sessions.definition(turn["session_id"]).harness_id)
            if taker is None:
                self._offered.setdefault(turn["id"], now)
                continue
            self._offered.pop(turn["id"], None)
            try:
                taker[1].set_result(self._grant(turn, taker[0]))
            except Exception as fault:  # a broken turn must not take the waiting lease, nor the others' turns, with it
                log.exception("turn %s cannot start", turn["id"])
                self._waiting.appendleft(taker)
                self._break(turn, fault)
            return True
        return False

    def _ready(self, now: float) -> list[sqlite3.Row]:
        if self._stopping:
            return []
        return self._db.all(
            "SELECT turns.* FROM turns JOIN sessions ON sessions.id = turns.session_id "
            "WHERE turns.status = 'queued' AND sessions.lease_until <= ? AND NOT EXISTS "
            "(SELECT 1 FROM runs WHERE runs.session_id = turns.session_id AND runs.status = 'held') "
            "ORDER BY turns.ready_at, sessions.number",
            now,
        )

    def _taker(self, harness_id: str) -> tuple[Holder, asyncio.Future[tuple[Run, JsonObject]]] | None:
        for waiter in self._waiting:
            holder, offer = waiter
            if holder.harness_id == harness_id and holder.closed is None and not offer.done():
                self._waiting.remove(waiter)
                return waiter
        return None

    def _grant(self, turn: sqlite3.Row, holder: Holder) -> tuple[Run, JsonObject]:
        definition = self._sessions.definition(turn["session_id"])
        now = time.time()
        epoch = 1 + self._db.value("SELECT count(*) FROM runs WHERE session_id = ?", turn["session_id"])
        run = Run(
            id=f"run_{secrets.token_hex(10)}",
            session_id=turn["session_id"],
            turn_id=turn["id"],
            segment=turn["segment"],
            epoch=epoch,
            manifest_hash=definition.manifest_hash,
            agent_id=definition.agent_id,
            holder=holder,
            deadline=now + self._config.times.advance,
        )
        with self._db.transaction():
            self._db.run(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, 'held', NULL, ?)",
                run.id,
                run.session_id,
                run.turn_id,
                run.segment,
                epoch,
                now,
            )
            self._db.run(
                "UPDATE sessions SET lease_until = ? WHERE id = ?", now + self._config.times.lease, run.session_id
            )
            start = self.start_of(run)
            self._db.run(
                "UPDATE turns SET status = 'running', answered = 0, started_segment = ? WHERE id = ?",
                run.segment,
                run.turn_id,
            )
            place = run.place
            self._record.add("run.leased", place, segment=run.segment)
            if turn["started_segment"] < run.segment:
                self._record.add("turn.started", place, input=start["checkpoint"]["input"], segment=run.segment)
        self._live[run.id] = run
        holder.runs[run.id] = run
        return run, start

    def _break(self, turn: sqlite3.Row, fault: Exception) -> None:
        with self._db.transaction():
            error = {"code": "internal", "message": f"The turn could not start: {fault}"}
            self._sessions.end_turn(turn["id"], "failed", error=error)

    # --- While it runs ---------------------------------------------------------------------------------------------------

    def renew(self, holder: Holder, run_id: str) -> JsonObject:
        run = holder.runs.get(run_id)
        if run is None:
            raise RuntimeRefusal("run_not_held", f"run {run_id} is not held by this connection")
        if run.over is not None:
            return {"ok": False}
        if run.abort is not None:
            return {"ok": True}  # not renewed: a harness that does not stop loses it
        self._db.run(
            "UPDATE sessions SET lease_until = ? WHERE id = ?", time.time() + self._config.times.lease, run.session_id
        )
        early, life = min(self._config.times.token_early, self._config.times.token / 2), self._config.times.token
        # One that ends later than a new one would was made before the clock was set back: it is not good yet.
        good = early <= run.token_expires - time.time() <= max(1, round(life))
        return {"ok": True} | ({} if good else self._token(run))

    def held(self, holder: Holder, run_id: str, *, cancelled: bool = False, stopping: bool = False) -> Run:
        """The run, when ``holder`` may act for it. ``cancelled``: though its turn was cancelled; ``stopping``: though it
        was told to stop for another reason. Raises RuntimeRefusal."""
        run = holder.runs.get(run_id)
        if run is None or run.over not in (None, "lapsed"):
            raise RuntimeRefusal("run_not_held", f"run {run_id} is not held by this connection")
        if run.over == "lapsed":
            raise RuntimeRefusal("ownership_lost", f"the lease of run {run_id} lapsed")
        if run.abort == "cancel" and not cancelled:
            raise RuntimeRefusal("turn_cancelled", f"turn {run.turn_id} was cancelled")
        if run.abort == "deadline" and not (cancelled or stopping):
            raise RuntimeRefusal("turn_cancelled", f"turn {run.turn_id} passed its deadline")
        return run

    def is_live(self, run_id: str) -> bool:
        """Whether the gates may act for it."""
        run = self._live.get(run_id)
        return run is not None and run.abort not in ("cancel", "ownership.lost")

    def live(self) -> list[Run]:
        return list(self._live.values())

    # --- What ends it ----------------------------------------------------------------------------------------------------

    def release(self, holder: Holder, run_id: str, reason: str) -> JsonObject:
        run = holder.runs.get(run_id)
        if run is None:
            raise RuntimeRefusal("run_not_held", f"run {run_id} is not held by this connection")
        if run.over is None:
            with self._db.transaction():
                self._settle_ended(run)
                self.end(run, reason)
                self._record.add("run.released", run.place, reason=reason)
        return {}

    def lost(self, holder: Holder) -> None:
        """The connection went: its runs end, and their sessions wait for the lease to lapse."""
        for run in [run for run in self._live.values() if run.holder is holder]:
            self._lose(run, "connection.lost", over="connection.lost", keep_lease=True)

    def cancel(self, turn_id: str, reason: CancelReason, message: str | None = None) -> bool:
        """Tell the run that holds the turn to stop. False: no run holds it. A person's cancel comes before any other."""
        run = next((run for run in self._live.values() if run.turn_id == turn_id), None)
        if run is None:
            return False
        if run.abort is None or (reason == "cancel" and run.abort != "cancel"):
            run.abort = reason
            text = {"message": message} if message else {}
            told = {"runId": run.id, "reason": reason, **text}
            self._db.after_commit(lambda: run.holder.tell("cancel", told))
        return True

    def end(self, run: Run, reason: str, *, over: str | None = None, keep_lease: bool = False) -> None:
        """The run is over. Within the caller's transaction."""
        self._db.run("UPDATE runs SET status = 'over', reason = ? WHERE id = ?", reason, run.id)
        if not keep_lease:
            self._db.run("UPDATE sessions SET lease_until = 0 WHERE id = ?", run.session_id)
        self._db.after_commit(lambda: self._ended(run, over or reason))

    def _ended(self, run: Run, over: str) -> None:
        run.over = over
        self._live.pop(run.id, None)
        for tell in self.on_over:
            tell(run)
        self.advance()

    def _lose(self, run: Run, reason: str, *, over: str, keep_lease: bool) -> None:
        with self._db.transaction():
            self._settle_ended(run)
            self.end(run, reason, over=over, keep_lease=keep_lease)
            self._record.add("run.lost", run.place, reason=reason)

    def _settle_ended(self, run: Run) -> None:
        """What becomes of the turn when its run ends without an output."""
        if self._sessions.turn(run.turn_id)["status"] != "running":
            return  # it was cancelled: that settled it
        if run.abort == "deadline":
            self._sessions.end_turn(run.turn_id, "failed", error=PAST_DEADLINE, run_id=run.id)
        else:
            self._sessions.queue(run.turn_id)

    # --- Time ------------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Lapsed leases, deadlines and offers that nobody takes, each when it is due."""
        while True:
            self._shorten()
            now = time.time()
            self._lapse(now)
            self._pass_deadlines(now)
            self._withdraw_offers(now)
            self.advance()
            self._changed.clear()
            due = self._due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - time.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _due(self) -> float | None:
        """When time next changes something: a second since 1970."""
        moments = [run.deadline for run in self._live.values() if run.abort is None]
        moments += [since + self._config.times.offer for since in self._offered.values()]
        lease = self._db.value(
            "SELECT min(lease_until) FROM sessions WHERE lease_until > 0 AND ("
            "EXISTS (SELECT 1 FROM runs WHERE runs.session_id = sessions.id AND runs.status = 'held') OR "
            "(lease_until > ? AND EXISTS (SELECT 1 FROM turns WHERE session_id = sessions.id AND status = 'queued')))",
            time.time(),
        )
        return min([*moments, lease] if lease is not None else moments, default=None)

    def _shorten(self) -> None:
        """A clock that was set back must not keep a session for hours."""
        latest = time.time() + self._config.times.lease
        self._db.run("UPDATE sessions SET lease_until = ? WHERE lease_until > ?", latest, latest)

    def _lapse(self, now: float) -> None:
        for run in self.live():
            if float(self._sessions.row(run.session_id)["lease_until"]) <= now:
                if run.abort is None:
                    run.holder.tell("cancel", {"runId": run.id, "reason": "ownership.lost"})
                self._lose(run, run.abort or "ownership.lost", over="lapsed", keep_lease=False)

    def _pass_deadlines(self, now: float) -> None:
        for run in self.live():
            if run.abort is None and run.deadline <= now:
                self.cancel(run.turn_id, "deadline", PAST_DEADLINE["message"])

    def _withdraw_offers(self, now: float) -> None:
        wanted = {turn["id"]: turn for turn in self._ready(now)}
        for turn_id, since in list(self._offered.items()):
            if turn_id not in wanted:
                del self._offered[turn_id]
            elif since + self._config.times.offer <= now:
                self._offered[turn_id] = now
                self._record.add(
                    "run.offer.withdrawn",
                    Place(wanted[turn_id]["session_id"], turn_id=turn_id),
                    reason=f"no host took it within {self._config.times.offer:g} s; it is offered again",
                )

    async def stop(self) -> None:
        """No more offers; every run is told to give itself back, and gets a moment to do so."""
        self._stopping = True
        for run in self.live():
            self.cancel(run.turn_id, "shutdown", "core is stopping")
        try:
            async with asyncio.timeout(self._config.times.stop):
                while self._live:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.info("%d runs were not released; their leases lapse", len(self._live))

    def _token(self, run: Run) -> JsonObject:
        claims = {"ses": run.session_id, "trn": run.turn_id, "run": run.id, "agt": run.agent_id, "epc": run.epoch}
        token, run.token_expires = self._authority.mint(RUN, claims, self._config.times.token)
        return {"token": token, "tokenExpiresAt": iso(run.token_expires)}
