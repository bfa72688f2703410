"""The order of one session's calls: writers one after another, a reader after the writers that came before it.

Sessions never wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable


class Turn:
    """A call's place in its session."""

    def __init__(self) -> None:
        self.after: list[Callable[[], None]] = []
        self.done = False


class Order:
    """``soon`` runs a callback from the loop: a long row of calls must not become a deep stack."""

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        self._soon = soon
        self._last_writer: dict[str, Turn] = {}

    def enter(self, session: str, run: Callable[[Turn], None], *, writes: bool) -> None:
        """Queues a call. ``run`` is called once, when every earlier writer is done: perhaps now."""
        turn = Turn()
        before = self._last_writer.get(session)
        if writes:
            self._last_writer[session] = turn
        if before is None or before.done:
            run(turn)
        else:
            before.after.append(lambda: run(turn))

    def leave(self, session: str, turn: Turn) -> None:
        """The call is over; those that waited for it start."""
        turn.done = True
        for run in turn.after:
            self._soon(run)
        turn.after.clear()
        if self._last_writer.get(session) is turn:
            del self._last_writer[session]
