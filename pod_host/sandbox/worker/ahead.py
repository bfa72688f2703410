"""Keeps a few shells started ahead, as the latest commands had them: the next one of their kind need not wait for its own.

How many: as many as were missed lately. One more each time that a command finds none ready, and none any more when nobody
has asked for a while. When: at a calm moment, or when the last one was taken, then all that are missing. Starting one costs
more than running a command does, and commands that come one after the other shall not wait for that each time, but rarely.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from pod_host.sandbox.worker.held import SCRIPT_BYTES, HeldShell, Kind
from pod_host.sandbox.worker.loop import Loop, Timer
from pod_host.sandbox.worker.shell import Shell
from pod_host.sandbox.worker.spawner import Spawner

_UNWANTED_SECONDS: Final = 120.0
_CALM_SECONDS: Final = 0.005  # without a command that asks for one
_FIRST_GOAL: Final = 2
_PROOF: Final = b"exit 97"
_PROOF_STATUS: Final = 97 << 8
_PROOFS: Final = 3  # that may fail: somebody may have killed one


class ShellsAhead:
    """``most``: shells that wait at a time. With none, shells are held all the same, each for a script that is there: that
    is how one is started soonest."""

    def __init__(self, loop: Loop, spawner: Spawner, shell: Shell, most: int) -> None:
        self._loop = loop
        self._spawner = spawner
        self._shell = shell
        self._most = most
        self._waiting: list[HeldShell] = []
        self._goal = 0
        self._latest: Kind | None = None
        self._filling = self._watching = self._proving = self._proven = False
        self._calm: Timer | None = None  # to fill up when it has run
        self._proofs = _PROOFS if shell.name == "bash" else 0

    @property
    def numbers(self) -> set[int]:
        """Of shells that wait: no command of anybody's."""
        return {shell.number for shell in self._waiting}

    @property
    def pids(self) -> set[int]:
        """Theirs, of those that run by now."""
        return {shell.pid for shell in self._waiting if shell.pid is not None}

    def take(
        self, script: bytes, environment: Mapping[str, str], cwd: str, settled: Callable[[], None]
    ) -> HeldShell | None:
        """A shell for the script; ``environment``: but for the call's own ``TRACEPARENT``. ``settled()`` comes when it is
        ready, or over, unless it is ready already. None: it takes a fresh one. Raises ``OSError`` when there are no
        descriptors left."""
        kind = self._kind_of(environment, cwd) if len(script) <= SCRIPT_BYTES else None
        if kind is None:
            return None
        if not self._proven:
            self._prove(kind)
            return None
        self._latest = kind
        fitting = [shell for shell in self._waiting if shell.kind is kind and not shell.over]
        now = time.monotonic()
        for shell in fitting:
            shell.wanted = now
        taken = next((shell for shell in fitting if shell.ready), fitting[0] if fitting else None)
        if taken is None or not taken.ready:
            self._goal = min(self._goal + 1, self._most)
        if taken is None:
            taken = HeldShell(self._loop, self._spawner, kind)
        else:
            self._waiting.remove(taken)
        taken.settled = settled
        self._fill_soon(now=not any(shell.ready for shell in fitting if shell is not taken))
        return taken

    def _kind_of(self, environment: Mapping[str, str], cwd: str) -> Kind | None:
        known = [self._latest] if self._latest is not None else []
        known += [shell.kind for shell in self._waiting]
        same = (kind for kind in known if kind.cwd == cwd and kind.environment == environment)
        return next(same, None) or Kind.of(self._shell.path, environment, cwd)

    def _prove(self, kind: Kind) -> None:
        """One goes first, to show that this kernel lets us write its memory and tells us how it ended: not each does."""
        if self._proving or not self._proofs:
            return
        self._proving = True
        self._proofs -= 1
        shell = HeldShell(self._loop, self._spawner, kind)

        def settled() -> None:
            if shell.run(_PROOF, None, ended):
                os.close(shell.out)
                os.close(shell.err)
            else:
                self._proving = False

        def ended(status: int) -> None:
            self._proving = False
            self._proven = status == _PROOF_STATUS
            if self._proven:
                self._latest = kind
                self._goal = min(_FIRST_GOAL, self._most)
                self._fill_soon(now=True)

        shell.settled = settled

    def _fill_soon(self, *, now: bool) -> None:
        """``now``: the next command would find none. Else when it is calm."""
        if self._calm is not None:
            self._calm.cancel()
            self._calm = None
        if not now:
            self._calm = self._loop.later(_CALM_SECONDS, self._fill)
        elif not self._filling:
            self._filling = True
            self._loop.soon(self._fill)

    def _fill(self) -> None:
        """Starts all that are missing, one in each round of the loop, which has other things to do."""
        self._filling = False
        if self._latest is None:
            return
        if self._spawner.busy:
            self._fill_soon(now=False)
            return
        self._waiting = [shell for shell in self._waiting if not shell.over]
        kind = self._latest
        if sum(shell.kind is kind for shell in self._waiting) >= self._goal:
            return
        if len(self._waiting) >= self._most:
            self._drop(min(self._waiting, key=lambda shell: shell.wanted))
        try:
            shell = HeldShell(self._loop, self._spawner, kind)
        except OSError:
            return  # no descriptors left: commands need what comes free
        self._waiting.append(shell)
        shell.settled = lambda: self._fill_soon(now=False)
        self._fill_soon(now=True)
        if not self._watching:
            self._watching = True
            self._loop.later(_UNWANTED_SECONDS, self._drop_unwanted)

    def _drop(self, shell: HeldShell) -> None:
        self._waiting.remove(shell)
        shell.discard()

    def _drop_unwanted(self) -> None:
        """What nobody has asked for goes: its environment may hold a token of old, and it takes memory."""
        now = time.monotonic()
        for shell in [shell for shell in self._waiting if now - shell.wanted >= _UNWANTED_SECONDS]:
            self._drop(shell)
        self._watching = bool(self._waiting)
        if self._watching:
            self._loop.later(_UNWANTED_SECONDS, self._drop_unwanted)
        else:
            self._goal = 0
            self._latest = None
