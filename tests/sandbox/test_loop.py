"""The worker's event loop, and the order of calls on it."""

from __future__ import annotations

import gc
import os
import threading

from pod_host.sandbox.worker.loop import Loop, Timer
from pod_host.sandbox.worker.order import Order, Turn


def test_a_watch_that_ended_in_this_round_is_not_called_though_its_number_lives_on() -> None:
    """The race: two descriptors are ready, the first one's callback closes the second, and a new one gets its number."""
    loop = Loop()
    ends = [os.pipe() for _ in range(2)]
    called: list[str] = []

    def closes_the_other(own: int, other: int) -> None:
        called.append("first")
        loop.unwatch(own)
        loop.unwatch(other)
        fresh, writer = os.pipe()
        os.dup2(fresh, other)
        os.close(fresh)
        loop.watch(other, lambda: called.append("fresh"))
        loop.later(0.01, loop.stop)
        os.set_inheritable(writer, False)

    (first, _), (second, _) = ends
    loop.watch(first, lambda: closes_the_other(first, second))
    loop.watch(second, lambda: closes_the_other(second, first))
    for _, writer in ends:
        os.write(writer, b"x")
    loop.run()
    assert called == ["first"]


def test_timers_run_in_order_and_a_cancelled_one_never() -> None:
    loop = Loop()
    ran: list[str] = []
    loop.later(0.02, loop.stop)
    loop.later(0.01, lambda: ran.append("b"))
    loop.later(0.0, lambda: ran.append("a"))
    cancelled = loop.later(0.005, lambda: ran.append("never"))
    cancelled.cancel()
    cancelled.cancel()
    loop.run()
    assert ran == ["a", "b"]


def test_cancelled_timers_do_not_pile_up() -> None:
    """A command is over long before its timeout would be."""
    loop = Loop()
    for _ in range(10_000):
        loop.later(3600.0, lambda: None).cancel()
    assert sum(isinstance(thing, Timer) for thing in gc.get_objects()) < 2000
    ran: list[str] = []
    for _ in range(3000):
        loop.later(0.0, lambda: ran.append("kept"))
    loop.later(0.001, loop.stop)
    loop.run()
    assert len(ran) == 3000


def test_calls_of_a_thread_run_in_the_loop() -> None:
    loop = Loop()
    where: list[int] = []

    def work() -> None:
        loop.from_thread(lambda: where.append(threading.get_ident()))
        loop.from_thread(loop.stop)

    threading.Thread(target=work).start()
    loop.run()
    assert where == [threading.get_ident()]


def test_writers_follow_one_another_and_readers_the_writers_before_them() -> None:
    ready: list[object] = []
    order = Order(lambda callback: ready.append(callback))
    began: dict[str, Turn] = {}

    def enter(name: str, *, writes: bool, session: str = "one") -> None:
        order.enter(session, lambda turn: began.__setitem__(name, turn), writes=writes)

    def leave(name: str, session: str = "one") -> None:
        order.leave(session, began[name])
        while ready:
            callback = ready.pop(0)
            assert callable(callback)
            callback()

    enter("read 0", writes=False)
    enter("write 1", writes=True)
    enter("read 1", writes=False)
    enter("write 2", writes=True)
    enter("read 2", writes=False)
    enter("other", writes=True, session="two")
    assert list(began) == ["read 0", "write 1", "other"]
    leave("write 1")
    assert list(began)[3:] == ["read 1", "write 2"]
    leave("write 2")
    assert list(began)[5:] == ["read 2"]
