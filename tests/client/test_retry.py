"""Retries: how long the waits may be, when they end, and the switch that takes them away."""

from __future__ import annotations

import random

import pytest

from pod_host.client import retry


class Flaky:
    def __init__(self, failures: int) -> None:
        self.calls = 0
        self._failures = failures

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise ConnectionError(f"failure {self.calls}")
        return self.calls


def test_waits_are_spread_over_a_ceiling_that_doubles_and_then_stay_what_they_are() -> None:
    """Hosts that lost their Runtime together come back spread out; who waited at random for good would come early."""
    random.seed(5)
    for failures, ceiling in enumerate((0.5, 1, 2, 4, 8, 10)):
        waits = [retry.spread_out(failures, 0.5, 10.0) for _ in range(400)]
        assert 0 <= min(waits) < ceiling * 0.1
        assert ceiling * 0.9 < max(waits) <= ceiling
    assert {retry.spread_out(failures, 0.5, 10.0) for failures in range(6, 5000)} == {10.0}


async def test_it_goes_on_until_it_works_and_tells_of_each_failure() -> None:
    told: list[str] = []
    flaky = Flaky(failures=50)
    with retry.no_waiting():
        without_end = retry.without_end(ConnectionError, first=0.5, most=10, tell=lambda fault: told.append(str(fault)))
        assert await without_end(flaky) == 51
    assert told == [f"failure {n}" for n in range(1, 51)]


async def test_other_faults_come_out_at_once() -> None:
    flaky = Flaky(failures=1)
    with retry.no_waiting(), pytest.raises(ConnectionError, match="failure 1"):
        await retry.without_end(TimeoutError, first=0.5, most=10)(flaky)
    assert flaky.calls == 1


async def test_the_last_failure_comes_out_as_it_is() -> None:
    flaky = Flaky(failures=9)
    with retry.no_waiting(), pytest.raises(ConnectionError, match="failure 3"):
        await retry.retrying(lambda fault: True, first=0.5, most=10, attempts=3)(flaky)


async def test_the_switch_holds_for_its_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("pod_host.client.retry.asyncio.sleep", sleep)
    with retry.no_waiting():
        with retry.no_waiting():
            await retry.pause(7)
        await retry.pause(7)
    await retry.pause(7)
    assert slept == [0, 0, 7]
