"""The load: people who talk to sessions, and clients who run commands and write files in the sandbox directly."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

from pod_host.contract.base import JsonObject
from tests.endurance.plans import Call, Plan, Planner
from tests.endurance.runtime import Down, Refused, Runtime

TURNS_OF_SESSION: Final = 20
ENDS: Final = ("turn.completed", "turn.failed", "turn.cancelled")
PAUSE: Final = 0.25  # before the Runtime, or a host, is looked for again


@dataclass
class Turn:
    """``end``: the event that ended it. ``sessions``: where it was posted to."""

    plan: Plan
    session: str
    id: str = ""
    end: JsonObject | None = None


@dataclass
class Exec:
    """A call of a client. ``answer``: its outcome; None when none came."""

    call: Call
    session: str
    answer: JsonObject | None = None


@dataclass
class Load:
    """``turns``, ``execs``: since they were last taken. ``totals``: of everything, by what became of it."""

    runtime: Runtime
    planner: Planner
    seed: int
    turns: list[Turn] = field(default_factory=list)
    execs: list[Exec] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    talking: dict[str, Turn] = field(default_factory=dict)  # by session: the turn that is under way
    _waiting: dict[str, asyncio.Future[JsonObject]] = field(default_factory=dict)
    _ended: dict[str, JsonObject] = field(default_factory=dict)
    rests: int = 0
    _goes: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: bool = False
    _active: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, sessions: int, clients: int) -> None:
        self._idle.set()
        self._tasks = [asyncio.create_task(self._follow())]
        self._tasks += [asyncio.create_task(self._person(number)) for number in range(sessions)]
        self._tasks += [asyncio.create_task(self._client(number)) for number in range(clients)]

    def go(self) -> None:
        self._goes.set()

    async def rest(self) -> None:
        """Nothing new is begun; returns when all that was begun has ended."""
        self._goes.clear()
        await self._idle.wait()
        self.rests += 1

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for fault in ended:
            if isinstance(fault, Exception) and not isinstance(fault, asyncio.CancelledError):
                raise fault

    def check(self) -> None:
        """Raises what a task of the load raised: a fault of the run itself."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def _begin(self) -> None:
        self._active += 1
        self._idle.clear()

    def _end(self) -> None:
        self._active -= 1
        if not self._active:
            self._idle.set()

    # --- people -------------------------------------------------------------------------------------------------------

    async def _person(self, number: int) -> None:
        chance = Random(f"{self.seed} person {number}")
        session, left = "", 0
        count = 0
        while True:
            await self._goes.wait()
            self._begin()
            try:
                if not left:
                    session, left = await self._open(), TURNS_OF_SESSION
                left -= 1
                count += 1
                turn = Turn(self.planner.turn(chance, f"p{number}-{count}"), session)
                self.turns.append(turn)
                self.talking[session] = turn
                await self._post(turn)
                turn.end = await self._end_of(turn.id)
                self.totals[turn.end["type"]] += 1
                del self.talking[session]
            finally:
                self._end()
            await asyncio.sleep(chance.random() * 0.1)  # people do not write as one

    async def _open(self) -> str:
        while True:
            try:
                return str((await self.runtime.ask("POST", "/v1/sessions"))["sessionId"])
            except Down:
                await asyncio.sleep(PAUSE)

    async def _post(self, turn: Turn) -> None:
        """Once, though an answer may be lost: then the session says whether the message came."""
        path = f"/v1/sessions/{turn.session}"
        while True:
            try:
                answer = await self.runtime.ask("POST", f"{path}/messages", {"input": turn.plan.message})
                turn.id = answer["turnId"]
                return
            except Down:
                pass  # the message may have come
            while not turn.id:
                try:
                    turns = (await self.runtime.ask("GET", path))["turns"]
                except Down:
                    await asyncio.sleep(PAUSE)
                    continue
                turn.id = next((known["turnId"] for known in turns if known["input"] == turn.plan.message), "")
                break
            if turn.id:
                return

    async def _end_of(self, turn_id: str) -> JsonObject:
        if turn_id in self._ended:
            return self._ended.pop(turn_id)
        future: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[turn_id] = future
        return await future

    async def _follow(self) -> None:
        after = 0
        while True:
            await self.runtime.ready.wait()
            try:
                async for event in self.runtime.events(after):
                    after = event["seq"]
                    await self._heard(event)
            except Down:
                pass  # it comes again, and tells of what was missed
            await asyncio.sleep(PAUSE)

    async def _heard(self, event: JsonObject) -> None:
        if event["type"] in ENDS:
            waiting = self._waiting.pop(event["turnId"], None)
            if waiting is not None:
                waiting.set_result(event)
            else:
                self._ended[event["turnId"]] = event
        elif event["type"] == "turn.waiting":
            self.totals["asked a person"] += len(event["interactions"])
            for interaction in event["interactions"]:
                task = asyncio.create_task(self._approve(event["sessionId"], interaction["id"]))
                self._tasks.append(task)

    async def _approve(self, session: str, interaction: str) -> None:
        while True:
            try:
                await self.runtime.ask("POST", f"/v1/sessions/{session}/interactions/{interaction}", {"approved": True})
            except Down:
                await asyncio.sleep(PAUSE)
            except Refused:
                return  # answered already, by the one before whose answer was lost; or its turn is over
            else:
                return

    async def cancel(self, place: int) -> None:
        """A person thinks better of it: of one of the turns under way."""
        sessions = sorted(self.talking)
        if not sessions:
            return
        try:
            await self.runtime.ask("POST", f"/v1/sessions/{sessions[place % len(sessions)]}/cancel", {})
        except (Down, Refused):
            return  # it ended meanwhile

    # --- clients ------------------------------------------------------------------------------------------------------

    async def _client(self, number: int) -> None:
        chance = Random(f"{self.seed} client {number}")
        session = await self._open()
        written: list[Call] = []  # since the last rest, after which the files go
        count = rests = 0
        while True:
            await self._goes.wait()
            self._begin()
            if rests != self.rests:
                rests = self.rests
                written.clear()
            try:
                count += 1
                key = f"c{number}-{count}"
                draw = chance.random()
                if draw < 0.2:
                    call = self.planner.write(chance, key)
                    written.append(call)
                elif draw < 0.3 and written:
                    call = self.planner.edit(key, written.pop())
                else:
                    call = self.planner.command(chance, key)
                made = Exec(call, session)
                self.execs.append(made)
                await self._call(made, leaves_after=0.2 if chance.random() < 0.03 else 60.0)
            finally:
                self._end()
            await asyncio.sleep(chance.random() * 0.05)  # likewise

    async def _call(self, made: Exec, leaves_after: float) -> None:
        await self.runtime.ready.wait()
        what = {"bash": "exec"}.get(made.call.tool, "write")
        body: JsonObject = {"tool": made.call.tool, "input": made.call.args}
        path = f"/v1/sessions/{made.session}/sandbox/{what}"
        try:
            made.answer = await self.runtime.ask("POST", path, body, seconds=leaves_after)
            self.totals[f"exec {made.answer['kind']}"] += 1
        except Down:
            self.totals["exec unanswered"] += 1
            await asyncio.sleep(PAUSE)
        except Refused as refusal:
            self.totals[f"exec refused {refusal.status}"] += 1
            await asyncio.sleep(PAUSE)
