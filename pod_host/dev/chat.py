"""A conversation with one session: what is sent, what is under way, what a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pod_host.contract.base import JsonObject
from pod_host.dev.north_client import North, NorthError
from pod_host.dev.rendering import Screen

_OVER: Final = {"turn.completed": "completed", "turn.failed": "failed", "turn.cancelled": "cancelled"}


def well_formed(text: str) -> str:
    """Bytes that are no UTF-8 come from terminals and arguments as lone surrogates, which no JSON and no file takes."""
    return text.encode(errors="surrogatepass").decode(errors="replace")


class Chat:
    """``last``: how the last turn ended, None before one did. ``refused``: a call was not approved, for want of a person.
    ``on_change`` is called when what is under way or what is asked has changed."""

    def __init__(self, north: North, session_id: str, screen: Screen) -> None:
        self._north = north
        self._session_id = session_id
        self._screen = screen
        self._active: set[str] = set()
        self._over: set[str] = set()
        self._changed = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._connected = asyncio.Event()
        self.asked: list[JsonObject] = []
        self.last: str | None = None
        self.refused = False
        self.on_change: Callable[[], None] = lambda: None

    @property
    def running(self) -> bool:
        return bool(self._active)

    @property
    def active(self) -> frozenset[str]:
        """The ids of turns that are not over."""
        return frozenset(self._active)

    async def follow(self, after: int) -> None:
        """Show what happens in this session, and to the host, until the Runtime ends it."""
        async for event in self._north.events(after, follow=True):
            if event.get("sessionId") in (None, self._session_id):
                self._take(event)

    async def connected(self) -> None:
        """Returns once the host is connected."""
        await self._connected.wait()

    async def resume(self) -> bool:
        """Take up what an earlier run left under way. Whether there was something."""
        view = await self._north.session(self._session_id)
        self._active |= {turn["turnId"] for turn in view["turns"] if turn["status"] in ("queued", "running", "waiting")}
        self._ask(view["interactions"])
        return self.running

    async def send(self, text: str) -> None:
        """While a turn runs the message waits, and the next turn takes it."""
        turn_id = (await self._north.send(self._session_id, well_formed(text))).get("turnId")
        if turn_id is not None and turn_id not in self._over:
            self._active.add(turn_id)
            self.on_change()

    async def settled(self) -> None:
        """Returns when no turn is under way, or one waits for a person."""
        while self._active and not self.asked:
            self._changed.clear()
            await self._changed.wait()

    async def answer(self, approved: bool) -> None:
        """To the first question that is open."""
        interaction = self.asked.pop(0)
        await self._north.decide(self._session_id, interaction["id"], approved)
        self._show_question()

    def echo(self, text: str) -> None:
        """Show what was sent, where no terminal shows what is typed."""
        self._screen.say(f"› {text}", "bold")

    def refuse_for_want_of_a_person(self) -> None:
        self.refused = True
        self._screen.say("not approved: no terminal to ask at", "yellow")

    def cancel(self) -> None:
        """Cancel the turn under way; the record tells when it is over."""
        task = asyncio.create_task(self._cancel())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _cancel(self) -> None:
        try:
            await self._north.cancel(self._session_id)
        except NorthError as fault:
            if fault.status != 409:  # 409: it is over already
                self._screen.say(str(fault), "red")

    def _take(self, event: JsonObject) -> None:
        self._screen.event(event)
        kind, turn_id = event["type"], event.get("turnId")
        match kind:
            case "host.connected":
                self._connected.set()
            case "turn.queued" if turn_id not in self._over:
                self._active.add(str(turn_id))
            case "turn.waiting":
                self._ask(event["interactions"])
            case "turn.completed" | "turn.failed" | "turn.cancelled":
                self._active.discard(str(turn_id))
                self._over.add(str(turn_id))
                self.asked.clear()
                self.last = _OVER[kind]
        self._changed.set()
        self.on_change()

    def _ask(self, interactions: list[JsonObject]) -> None:
        known = {one["id"] for one in self.asked}
        new = [one for one in interactions if one["id"] not in known]
        first = not self.asked
        self.asked += new
        if first:
            self._show_question()

    def _show_question(self) -> None:
        if self.asked:
            self._screen.question(self.asked[0])
        self._changed.set()
        self.on_change()
