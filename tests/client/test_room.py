"""Room for large answers: what is held, who waits, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pod_host.client import Claim, Room


@asynccontextmanager
async def waiting(room: Room, *sizes: int) -> AsyncIterator[list[asyncio.Task[Claim]]]:
    """Claims that ask for so much, in this order; each as far as it comes by itself."""

    async def take(size: int) -> Claim:
        claim = room.claim()
        await claim.take(size)
        return claim

    tasks = [asyncio.create_task(take(size)) for size in sizes]
    await settled()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_there_is_room_for_has_it_at_once_and_the_rest_waits() -> None:
    room = Room(10)
    async with waiting(room, 4, 6, 1) as (first, second, third):
        assert [task.done() for task in (first, second, third)] == [True, True, False]
        first.result().give_back()
        await settled()
        assert third.done()
        assert room.held == 7


async def test_one_that_needs_much_is_not_passed_by_those_that_need_little() -> None:
    room = Room(10)
    async with waiting(room, 4, 8, 1, 1) as (first, large, *small):
        assert not any(task.done() for task in (large, *small))
        first.result().give_back()
        await settled()
        assert [task.done() for task in (large, *small)] == [True, True, True]


async def test_one_that_is_larger_than_the_room_has_all_of_it() -> None:
    room = Room(10)
    async with waiting(room, 1, 50, 1) as (first, huge, last):
        first.result().give_back()
        await settled()
        assert (huge.done(), last.done(), room.held) == (True, False, 10)
        huge.result().give_back()
        await settled()
        assert (last.done(), room.held) == (True, 1)


@pytest.mark.parametrize("given", [1, 2, 3])
async def test_one_that_gives_up_lets_those_behind_it_go_on(given: int) -> None:
    room = Room(10)
    async with waiting(room, 10, 9, 1, 1) as tasks:
        tasks[given].cancel()
        await settled()
        tasks[0].result().give_back()
        await settled()
        others = [task for task in tasks[1:] if task is not tasks[given]]
        assert all(task.done() for task in others)
        for task in others:
            task.result().give_back()
        assert room.held == 0


async def test_one_that_is_given_its_room_as_it_gives_up_gives_it_back() -> None:
    room = Room(10)
    async with waiting(room, 10, 10) as (first, second):
        first.result().give_back()
        second.cancel()  # its room came, and it has not run since
        await settled()
        assert (second.cancelled(), room.held) == (True, 0)


async def test_a_claim_gives_back_what_it_held_when_it_takes_anew_and_at_its_end() -> None:
    room = Room(10)
    async with room.claim() as claim:
        await claim.take(7)
        await claim.take(8)  # alone: there would be no room for both
        assert room.held == 8
    claim.give_back()
    assert room.held == 0
