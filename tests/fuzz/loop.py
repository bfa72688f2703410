"""Coroutines of a target on an event loop whose clock leaps over waits, and what a target must never leave behind."""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pod_host.errors import PodHostError

T = TypeVar("T")


class _Leaping(selectors.DefaultSelector):
    """Where the loop would wait for a timer, it is then at once."""

    ahead = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.ahead += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return super().time() + self._leaping.ahead


def run(work: Coroutine[Any, Any, T]) -> T:
    """Fails when a callback or a task that nobody awaits raised, as well as when ``work`` does."""
    faults: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: faults.append(context))
        result = runner.run(work)
    assert not faults, faults
    return result


class _Stacks(logging.Handler):
    """Keeps what was logged with a stack: a bug that something survived. Errors of ours on purpose are none."""

    def __init__(self) -> None:
        super().__init__()
        self.bugs: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        if fault is not None and not isinstance(fault, PodHostError):
            self.bugs.append(fault)


@contextmanager
def no_bugs() -> Iterator[None]:
    """Fails when the block logs a bug: what is survived and told counts as a crash here."""
    logger = logging.getLogger("pod_host")
    stacks, spreads = _Stacks(), logger.propagate
    logger.addHandler(stacks)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(stacks)
        logger.propagate = spreads
    for bug in stacks.bugs:
        raise AssertionError("a bug was logged") from bug
