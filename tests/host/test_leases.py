"""The runs of one connection, over a real channel to a scripted Runtime; the turns themselves are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pod_host.client import Channel, Run, Served
from pod_host.client.retry import no_waiting
from pod_host.contract.base import Wire
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import Cancel, CancelReason
from pod_host.host.leases import Leases
from pod_host.turn import Ending, Released, Reported
from tests.host.core import Connection, Core, Watched, turn_start


class PlayedTurn:
    """Runs until it is stopped or told to end."""

    def __init__(self, run: Run, start: TurnStart, turns: Watched) -> None:
        self.run_id = run.grant.run_id
        self.leased = run
        self.stops: list[str] = []
        self.end: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._turns = turns

    async def run(self) -> Ending:
        await self._turns.add(self)
        return await self.end

    def stop(self, reason: CancelReason, message: str | None = None) -> None:
        self.stops.append(reason)
        if not self.end.done():
            self.end.set_result(Released("ownership.lost" if reason == "ownership.lost" else "shutdown"))


class Setting:
    """A channel to the scripted Runtime, and leases on it."""

    def __init__(self, leases: Leases, connection: Connection, turns: Watched, taking: asyncio.Task[None]) -> None:
        self.leases = leases
        self.connection = connection
        self.turns = turns
        self.taking = taking

    async def turn(self, run_id: str) -> PlayedTurn:
        turn: PlayedTurn = await self.turns.first(lambda turn: turn.run_id == run_id)
        return turn


NewTurn = Callable[[Run, TurnStart, Watched], Any]


@pytest.fixture
async def lease(core: Core) -> AsyncIterator[Callable[..., Any]]:
    """``await lease(slots=…, renew_every=…, new_turn=…)``."""
    channels: list[tuple[Channel, asyncio.Task[None]]] = []

    async def begin(slots: int = 8, renew_every: float = 60.0, new_turn: NewTurn = PlayedTurn) -> Setting:
        turns = Watched()
        hearing: list[Leases] = []

        def hear(method: str, params: Wire) -> None:
            assert isinstance(params, Cancel)
            hearing[0].cancel(params)

        def serve(served: Served) -> None:
            served.answer({})

        core.epoch = 1
        channel = await Channel.connect(core.url, "host-1-1", tls=None, on_request=serve, on_message=hear)
        leases = Leases(
            channel, slots=slots, renew_every=renew_every, new_turn=lambda run, start: new_turn(run, start, turns)
        )
        hearing.append(leases)
        taking = asyncio.create_task(leases.take())
        channels.append((channel, taking))
        await core.connections.count(1)
        return Setting(leases, core.connections.all[0], turns, taking)

    yield begin
    for channel, taking in channels:
        taking.cancel()
        await channel.close("over")


def leases_asked(connection: Connection) -> int:
    return sum(1 for frame in connection.frames.all if frame.get("m") == "lease")


async def test_one_lease_waits_at_a_time_while_slots_are_free(lease: Callable[..., Any]) -> None:
    setting = await lease(slots=2)
    connection = setting.connection
    await connection.offer("run-1", turn_start("s-1"))
    await connection.offer("run-2", turn_start("s-2"))
    await connection.offer("run-3", turn_start("s-3"))
    first = await setting.turn("run-1")
    await setting.turn("run-2")
    assert setting.leases.held == ("run-1", "run-2")
    assert leases_asked(connection) == 2
    first.end.set_result(Reported("completed"))
    await setting.turn("run-3")
    assert setting.leases.held == ("run-2", "run-3")
    assert leases_asked(connection) == 3


async def test_a_run_is_renewed_and_its_new_token_taken(lease: Callable[..., Any]) -> None:
    setting = await lease(renew_every=0.02)
    setting.connection.renewal = {"ok": True, "token": "another"}
    await setting.connection.offer("run-1", turn_start())
    turn = await setting.turn("run-1")
    assert turn.leased.token == "token of run-1"
    await setting.connection.asked("lease.renew")
    await setting.connection.asked("lease.renew", after=len(setting.connection.frames.all))
    assert turn.leased.token == "another"
    assert turn.stops == []


async def test_a_run_that_is_over_at_the_runtime_is_stopped(lease: Callable[..., Any]) -> None:
    setting = await lease(renew_every=0.02)
    setting.connection.renewal = {"ok": False}
    await setting.connection.offer("run-1", turn_start())
    turn = await setting.turn("run-1")
    await turn.end
    assert turn.stops == ["ownership.lost"]


@pytest.mark.parametrize(("code", "stopped"), [("run_not_held", True), ("internal", False)])
async def test_a_refused_renewal_stops_the_run_only_when_it_is_not_held(
    lease: Callable[..., Any], code: str, stopped: bool
) -> None:
    setting = await lease(renew_every=0.02)

    async def refuse(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        return {"refuse": code} if method == "lease.renew" else None

    setting.connection.on_request = refuse
    await setting.connection.offer("run-1", turn_start())
    turn = await setting.turn("run-1")
    await setting.connection.asked("lease.renew")
    if stopped:
        await turn.end
    else:
        await setting.connection.asked("lease.renew", after=len(setting.connection.frames.all))
    assert turn.stops == (["ownership.lost"] if stopped else [])


async def test_a_renewal_without_an_answer_does_not_hold_back_the_next(lease: Callable[..., Any]) -> None:
    setting = await lease(renew_every=0.02)

    async def silent(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "lease.renew":
            await asyncio.Event().wait()
        return None

    setting.connection.on_request = silent
    await setting.connection.offer("run-1", turn_start())
    await setting.turn("run-1")
    for _ in range(3):
        await setting.connection.asked("lease.renew", after=len(setting.connection.frames.all))


async def test_a_cancel_reaches_the_turn_with_its_reason(lease: Callable[..., Any]) -> None:
    setting = await lease()
    await setting.connection.offer("run-1", turn_start())
    turn = await setting.turn("run-1")
    await setting.connection.cancel("no-such-run", "cancel")
    await setting.connection.cancel("run-1", "deadline")
    await turn.end
    assert turn.stops == ["deadline"]
    released = await setting.connection.asked("lease.release")
    assert released == {"runId": "run-1", "reason": "shutdown"}


async def test_a_cancel_that_comes_with_the_lease_itself_is_not_lost(lease: Callable[..., Any]) -> None:
    setting = await lease()
    setting.leases.cancel(Cancel(run_id="run-1", reason="cancel"))
    await setting.connection.offer("run-1", turn_start())
    turn = await setting.turn("run-1")
    assert turn.stops == ["cancel"]


async def test_a_bug_in_a_turn_ends_that_turn_as_thrown_and_the_host_goes_on(
    lease: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PlayedTurn):
        async def run(self) -> Ending:
            raise KeyError("oops")

    setting = await lease(slots=1, new_turn=Broken)
    await setting.connection.offer("run-1", turn_start())
    failed = await setting.connection.asked("turn.failed")
    assert failed == {"runId": "run-1", "thrown": {"code": "internal", "message": "KeyError: 'oops'"}}
    assert any(record.exc_info for record in caplog.records)
    await setting.connection.offer("run-2", turn_start())
    failed = await setting.connection.asked("turn.failed", after=len(setting.connection.frames.all))
    assert failed["runId"] == "run-2"


async def test_a_turn_that_cannot_even_be_made_is_reported_too(lease: Callable[..., Any]) -> None:
    def unmakeable(run: Run, start: TurnStart, turns: Watched) -> Any:
        raise ValueError("no such manifest")

    setting = await lease(new_turn=unmakeable)
    await setting.connection.offer("run-1", turn_start())
    failed = await setting.connection.asked("turn.failed")
    assert failed["thrown"]["message"] == "ValueError: no such manifest"


@pytest.mark.parametrize(
    ("members", "named"),
    [({"checkpoint": None}, "checkpoint"), ({"checkpoint": 5}, "checkpoint"), ({"outcomes": 5}, "outcomes")],
)
async def test_a_turn_that_cannot_be_read_is_failed_and_names_the_member(
    lease: Callable[..., Any], members: dict[str, Any], named: str
) -> None:
    setting = await lease()
    readable = turn_start()
    await setting.connection._offers.put(  # as `offer`, whose grant is made from the checkpoint
        {"run": {"runId": "run-1", "sessionId": "s", "turnId": "t", "epoch": 1}, "input": {**readable, **members}}
    )
    failed = await setting.connection.asked("turn.failed")
    assert failed["thrown"]["code"] == "invalid"
    assert named in failed["thrown"]["message"]
    await setting.connection.offer("run-2", readable)
    await setting.turn("run-2")


async def test_a_lease_that_fails_is_asked_again(lease: Callable[..., Any], core: Core) -> None:
    refusals = 3

    async def refuse(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal refusals
        if method == "lease" and refusals:
            refusals -= 1
            return {"refuse": "internal"}
        return None

    core.on_request = refuse
    with no_waiting():
        setting = await lease()
        await setting.connection.offer("run-1", turn_start())
        await setting.turn("run-1")
    assert leases_asked(setting.connection) >= 4


async def test_stopping_gives_every_run_back(lease: Callable[..., Any]) -> None:
    setting = await lease()
    for number in range(3):
        await setting.connection.offer(f"run-{number}", turn_start(f"s-{number}"))
    await setting.turns.count(3)
    setting.taking.cancel()
    await setting.leases.stop("shutdown", 60.0)
    assert setting.leases.held == ()
    released = [frame["p"] for frame in setting.connection.frames.all if frame.get("m") == "lease.release"]
    assert sorted(each["runId"] for each in released) == ["run-0", "run-1", "run-2"]
    assert {each["reason"] for each in released} == {"shutdown"}


async def test_a_turn_that_does_not_stop_is_cancelled(lease: Callable[..., Any]) -> None:
    class Deaf(PlayedTurn):
        def stop(self, reason: CancelReason, message: str | None = None) -> None:
            self.stops.append(reason)

    setting = await lease(new_turn=Deaf)
    await setting.connection.offer("run-1", turn_start())
    turn = await setting.turn("run-1")
    await setting.leases.stop("shutdown", 0.01)
    assert turn.end.cancelled()
    assert setting.leases.held == ()


async def test_the_end_of_the_connection_ends_the_leasing(lease: Callable[..., Any]) -> None:
    setting = await lease()
    await setting.connection.close("core is stopping")
    await setting.taking
