"""One zygote as the worker sees it, from its fork to its end: its process and the socket to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

from pod_host.sandbox.worker.loop import Loop
from pod_host.sandbox.worker.spawn import Spawn
from pod_host.sandbox.worker.zygote import Domain, fork_zygote
from pod_host.sandbox.worker.zygote_protocol import (
    ANSWER_BYTES,
    MOST_COLLECTED,
    Program,
    Said,
    ask_to_hold,
    ask_to_run,
    read_answer,
    tell_collected,
)

_COLLECT_SECONDS: Final = 0.02  # a request to hold is likely to come before, and tells the zygote as well


class ZygoteLink:
    """``answered(request, said, value, doing)``: what it said of a request to hold (``zygote_protocol``). Making one raises
    ``OSError``: no process or no descriptor to be had."""

    def __init__(
        self,
        loop: Loop,
        domain: Domain,
        nursery: tuple[int, int],
        protected: tuple[list[int], list[int]],
        answered: Callable[[Spawn, Said, int, str], None],
    ) -> None:
        self.pid, self._channel = fork_zygote(domain, nursery, *protected)
        self._loop = loop
        self._answered = answered
        self._expected: dict[int, Spawn] = {}  # by token, those to be held that no answer came for
        self._last_token = 0
        self._known_program: Program | None = None  # what it was asked to hold last
        self._uncollected: list[int] = []  # held programs that have ended, to be told of
        self._listening = True
        loop.watch(self._channel.fileno(), self._hear)

    def run(self, request: Spawn, status: int) -> None:
        """Raises ``OSError``."""
        stdout, stderr = request.descriptors
        ask_to_run(
            self._channel, request.program, request.tag, status=status, stdout=stdout, stderr=stderr,
            executable=request.executable, script=request.script,
        )  # fmt: skip

    def hold(self, request: Spawn) -> None:
        """Raises ``OSError``; not because it is gone, as reaping it will tell."""
        self._last_token = self._last_token % 0x7FFFFFFF + 1
        self._expected[self._last_token] = request
        stdout, stderr, gate = request.descriptors
        program = None if request.program is self._known_program else request.program
        collected = self._uncollected[:MOST_COLLECTED]
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            ask_to_hold(self._channel, self._last_token, program, collected, stdout=stdout, stderr=stderr, gate=gate)
            self._known_program = request.program
            del self._uncollected[: len(collected)]

    def collect(self, pid: int) -> None:
        """It may forget this program of its own; after that the number may be another's."""
        if not self._uncollected:
            self._loop.later(_COLLECT_SECONDS, self._tell_collected)
        self._uncollected.append(pid)

    def _tell_collected(self) -> None:
        """Unless a request to hold has told of them."""
        some = self._uncollected[:MOST_COLLECTED]
        if not some or not self._listening:
            return
        with contextlib.suppress(OSError):  # its socket is full for a while, or it is gone: then they are ours to reap
            tell_collected(self._channel, some)
            del self._uncollected[: len(some)]
        if self._uncollected:
            self._loop.later(_COLLECT_SECONDS, self._tell_collected)

    def _hear(self) -> None:
        while self._listening:
            try:
                data = self._channel.recv(ANSWER_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.unwatch(self._channel.fileno())  # it is gone; the rest is done when it is reaped
                self._listening = False
                return
            said, token, value, doing = read_answer(data)
            request = self._expected.pop(token, None)
            if request is not None:
                self._answered(request, said, value, doing)

    def kill(self) -> None:
        """And reap it."""
        os.kill(self.pid, signal.SIGKILL)  # our child, and not reaped: the number is still its own
        os.waitpid(self.pid, 0)

    def close(self) -> list[Spawn]:
        """It is reaped. What it said last is heard; the requests to hold that are lost."""
        self._hear()
        if self._listening:
            self._loop.unwatch(self._channel.fileno())
            self._listening = False
        self._channel.close()
        return list(self._expected.values())
