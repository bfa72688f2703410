"""The worker's life: started by the host with one socket, it confines itself, then does what it is asked until the
socket ends. Then it kills what it started, and goes."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import socket
import time
from typing import Any, Final

from pod_host import limits
from pod_host.sandbox.frames import Decoder, Header, encode
from pod_host.sandbox.tags import Sweep
from pod_host.sandbox.worker.calls import Calls
from pod_host.sandbox.worker.channel import Channel
from pod_host.sandbox.worker.loop import Loop
from pod_host.sandbox.worker.machinery import Machinery, describe
from pod_host.sandbox.worker.shell import Shell
from pod_host.sandbox.worker.spawner import Spawner
from pod_host.sandbox.worker.spool import Spool
from pod_host.sandbox.worker.start import CannotStart, Settings, Started, confine, reset_signals
from pod_host.sandbox.worker.threads import Threads
from pod_host.sandbox.worker.zygote import Domain

_GARBAGE_OBJECTS: Final = 10_000  # before some are looked at: nearly all go by themselves, a call makes some hundreds
_FILE_THREADS: Final = 8  # calls on files at once; a fixed number, whose ids the commands' filter guards


def main(descriptor: int) -> None:
    """``descriptor``: the socket to the host, whose first frame is the settings."""
    reset_signals()
    peer = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    settings = Settings(**_first_frame(peer))
    try:
        started = confine(settings)
    except CannotStart as error:
        peer.sendall(b"".join(encode({"fatal": str(error)})))
        return
    Worker(peer, settings, started).run()


def _first_frame(peer: socket.socket) -> Header:
    decoder = Decoder()
    while True:
        count = peer.recv_into(decoder.target())
        if count == 0:
            raise SystemExit(0)  # the host went before it said anything
        for header, _ in decoder.received(count):  # one: the host waits for our hello before it says more
            return header


class Worker:
    def __init__(self, peer: socket.socket, settings: Settings, started: Started) -> None:
        self._loop = Loop()
        self._host = os.getppid()
        self._host_threads = settings.host_threads
        gc.collect()
        gc.freeze()  # what is here stays: the zygote shares these pages while nobody looks at them
        gc.set_threshold(_GARBAGE_OBJECTS)
        # Threads before the zygote: its filter names them.
        threads = Threads(_FILE_THREADS, self._loop.from_thread)
        abi = started.confinement.abi
        leaf = self._leaf = started.leaf
        domain = Domain(
            abi, started.confinement.seccomp, settings.read_only(), settings.written(), started.descriptors,
            leaf.entrance if leaf else None,
        )  # fmt: skip
        spawner = Spawner(self._loop, started.space, domain, self._protected)
        spool = Spool(settings.spool)
        machinery = Machinery(self._loop, spawner, spool, Shell.of_this_image(), settings.shells_ahead)
        self._machinery = machinery
        self._channel = Channel(self._loop, peer, self._received, self._host_gone)
        self._calls = Calls(settings, started, machinery, threads, self._channel.send)
        self._abi = abi
        space = started.space
        self._channel.send(
            {
                "hello": {
                    **dataclasses.asdict(started.confinement),
                    "uid": os.getuid(),
                    "shell": machinery.shell.path,
                    "cgroup": leaf.directory if leaf else None,
                    "tags": [space.base, space.width, space.realm, *space.untouched],
                }
            }
        )

    def run(self) -> None:
        self._loop.run()
        self._kill_everything()

    def _received(self, header: Header, body: memoryview) -> None:
        if "abort" in header:
            self._calls.abort(header["abort"])
        elif header["do"] == "report":
            self._channel.send({"id": header["id"], "outcome": "completed", "output": self._report()})
        else:
            self._calls.begin(header, body)

    def _host_gone(self) -> None:
        self._loop.stop()

    def _kill_everything(self) -> None:
        """Nothing that a command started outlives us, but what the kernel does not let go of."""
        end = time.monotonic() + limits.KILL_MOST_SECONDS
        sweep = Sweep()
        if self._leaf is not None:
            self._leaf.kill()
        while time.monotonic() < end and not sweep.saw(*self._machinery.signal(lambda _: True, signal.SIGKILL)):
            self._machinery.spawner.reap()
            time.sleep(0.001)

    def _report(self) -> dict[str, Any]:
        living = self._machinery.living()
        named = living[: limits.PROCESSES_NAMED]
        described = describe([pid for pid, _ in named])
        return {
            "pid": os.getpid(),
            "zygote": self._machinery.spawner.zygote_pid,
            "uid": os.getuid(),
            "abi": self._abi,
            "processes": [
                [process.pid, process.command, session, process.ports]
                for process, (_, session) in zip(described, named, strict=True)
            ],
            "more": len(living) - len(named),
        }

    def _protected(self) -> tuple[list[int], list[int]]:
        """The threads of the host, of what else it started, and ours; process groups too: no command may touch them."""
        guarded = {os.getpid(), self._host, *_children(self._host)}
        threads = {int(name) for pid in guarded for name in _tasks(pid)}
        threads.update(self._host_threads)  # what it said itself: its directory in /proc may be hidden from us
        groups = [os.getpgid(pid) for pid in guarded if _tasks(pid)]
        return sorted(threads), groups


def _children(pid: int) -> list[int]:
    """None where the kernel does not tell."""
    found: list[int] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []  # the host is gone; so are we, soon
