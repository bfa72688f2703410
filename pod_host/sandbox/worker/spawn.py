"""One program that the worker asks for."""

from __future__ import annotations

from collections.abc import Callable

from pod_host.sandbox.worker.loop import Timer
from pod_host.sandbox.worker.watched import Watched
from pod_host.sandbox.worker.zygote_protocol import Program


class Spawn:
    """One program asked for. In the end exactly one of ``failed(message)`` and ``ended(wait status)`` is called;
    ``started()`` may come before either, once ``pid`` is known. Takes over ``stdout``, ``stderr`` and ``gate``, to be closed.

    With a ``gate`` (the reading end of a pipe) the program is held: it must do nothing before it has read from there, and
    it is marked when ``started()`` comes. It is asked for once; without a gate it is asked for until it runs."""

    def __init__(
        self,
        program: Program,
        tag: tuple[int, int],
        stdout: int,
        stderr: int,
        *,
        executable: int | None = None,
        script: bytes = b"",
        gate: int | None = None,
        started: Callable[[], None],
        failed: Callable[[str], None],
        ended: Callable[[int], None],
    ) -> None:
        self.program = program
        self.tag = tag
        self.descriptors = [stdout, stderr] if gate is None else [stdout, stderr, gate]
        self.executable = executable
        self.script = script
        self.held = gate is not None
        self.started = started
        self.failed = failed
        self.ended = ended
        self.pid: int | None = None
        self.give_up: float | None = None  # set by the first attempt
        self.zygote = 0  # the pid of the zygote that was asked last
        self.status = -1  # our end of the status pipe while it is open
        self.watched: Watched | None = None  # a held program, while it runs
        self.told = b""
        self.timer: Timer | None = None
