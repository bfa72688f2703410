"""The host's side of the sandbox: one object that keeps a worker alive, and one for each call in flight."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pod_host import limits
from pod_host.errors import ConfinementMissing, SandboxError, WorkerLost
from pod_host.sandbox import kernel
from pod_host.sandbox.frames import Header
from pod_host.sandbox.launch import Launched, launch
from pod_host.sandbox.outcomes import Completed, Failed, Outcome
from pod_host.sandbox.process import WorkerProcess
from pod_host.sandbox.requests import Request, encode_request
from pod_host.sandbox.tags import TagSpace

_START_SECONDS: Final = 30.0  # from exec to the worker's hello, on a machine that has other things to do
_STOP_SECONDS: Final = 3.0  # for a worker to kill what it started, before it is killed itself
_BACKOFF_FIRST_SECONDS: Final = 0.1
_BACKOFF_MOST_SECONDS: Final = 5.0
_BACKOFF_RESET_SECONDS: Final = 10.0  # alive for so long: the next death is a new one


@dataclass(frozen=True)
class SandboxConfig:
    """``home`` is the commands' HOME; ``spool`` keeps whole outputs. ``denied`` paths are hidden from the worker and all
    commands, but for ``allowed`` paths below them, and ``readable`` ones, which are only read. ``uid``: what a worker
    started as root becomes. ``landlock_abi``: use no more than this ABI has; ``seccomp`` False: no filters.
    ``shells_ahead``: how many shells may wait for a command. ``require``: of {"files", "signals", "limits"}, what must
    hold, or ``start`` fails.

    All threads of the process must be there before ``start``: commands are kept from those alone."""

    workspace: Path
    home: Path
    skills: Path
    spool: Path
    denied: tuple[Path, ...] = ()
    allowed: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    uid: int | None = None
    landlock_abi: int | None = None
    seccomp: bool = True
    shells_ahead: int = limits.SHELLS_AHEAD
    require: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Confinement:
    """``abi``: the Landlock ABI in force, 0 when there is none. ``held``: of {"files", "signals", "limits"}, what the
    kernel holds. ``exposed``: a sentence for each thing that stays open. ``shares``: of {"cpu", "io", "memory", "pids"}, what
    the commands' own cgroup limits; empty where none is delegated."""

    abi: int
    held: frozenset[str]
    exposed: tuple[str, ...]
    shares: tuple[str, ...] = ()


@dataclass(frozen=True)
class SandboxProcess:
    pid: int
    command: str
    session: str  # empty when it cannot be known any more
    ports: tuple[int, ...] = ()  # TCP, that it listens on


@dataclass(frozen=True)
class Report:
    """What lives in the sandbox: ``processes``, and how many more there are. Without a worker only ``alive`` says
    anything."""

    alive: bool
    pid: int = 0
    zygote: int | None = None
    uid: int = 0
    abi: int = 0
    processes: tuple[SandboxProcess, ...] = ()
    more: int = 0


class Pending:
    """A call that was submitted. It goes on whoever waits for it, until it ends or is aborted."""

    def __init__(self, sandbox: Sandbox, identifier: int) -> None:
        self._sandbox = sandbox
        self._identifier = identifier
        self._sent = False  # to a worker: when that one dies, what the call did is unknown
        self._end: Outcome | SandboxError | None = None
        self._then: list[Callable[[Outcome | SandboxError], None]] = []
        self._waiters: set[asyncio.Future[Outcome]] = set()

    def then(self, told: Callable[[Outcome | SandboxError], None]) -> None:
        """``told`` hears how it ends: in the order of these calls, and before whoever waits for it does."""
        if self._end is None:
            self._then.append(told)
        else:
            told(self._end)

    async def outcome(self) -> Outcome:
        """How it ended. Raises ``WorkerLost``: what it did is unknown."""
        if isinstance(self._end, SandboxError):
            raise self._end
        if self._end is not None:
            return self._end
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def abort(self) -> None:
        """Kills what runs for the call. ``outcome()`` then gives what there is; a command's exit code is 130."""
        if self._end is None:
            self._sandbox._post({"abort": self._identifier})

    def _settle(self, end: Outcome | SandboxError) -> None:
        if self._end is not None:
            return
        self._end = end
        for told in self._then:
            told(end)
        for waiter in self._waiters:
            if waiter.done():  # cancelled, and not yet run on
                continue
            if isinstance(end, SandboxError):
                waiter.set_exception(end)
            else:
                waiter.set_result(end)


class Sandbox:
    """Files and commands behind the worker. ``start`` before all else; ``stop`` ends every command."""

    def __init__(self, config: SandboxConfig, first: Launched | None = None) -> None:
        """``first``: a worker that was launched before, for `start`."""
        self._config = config
        self._launched = first
        self._confinement: Confinement | None = None
        self._identifiers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._held: list[tuple[Header, bytes]] = []  # submitted while no worker was there
        self._worker: WorkerProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._hello: asyncio.Future[Header] | None = None
        self._lost = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def confinement(self) -> Confinement:
        """What holds commands in. Known once ``start`` has returned; raises ``SandboxError`` before."""
        if self._confinement is None:
            raise SandboxError("The sandbox was not started.")
        return self._confinement

    async def start(self) -> None:
        """Raises ``ConfinementMissing``, or ``SandboxError`` with one line that says what is wrong."""
        kernel.become_subreaper()  # for the day the worker dies: what it leaves comes to us
        await self._start_worker()
        self._keeper = asyncio.create_task(self._keep(), name="sandbox worker")

    async def stop(self) -> None:
        """Kills every command, and ends the worker. Calls in flight fail with ``WorkerLost``."""
        self._stopped = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._launched is not None:
            self._launched.end()
        await self._end_worker()
        self._fail("it was stopped", sent_only=False)

    def submit(self, request: Request) -> Pending:
        """Queues a call at once, in the order of submission."""
        if self._stopped:
            raise SandboxError("The sandbox is stopped.")
        return self._submit(*encode_request(request))

    async def ask(self, request: Request) -> Outcome:
        """A call, and how it ended. Cancelled, it is aborted. Raises as ``Pending.outcome``."""
        call = self.submit(request)
        try:
            return await call.outcome()
        except asyncio.CancelledError:
            call.abort()
            raise

    def look(self, told: Callable[[Report], None]) -> None:
        """``told`` gets a report, soon or at once."""
        if self._connected:
            self._submit({"do": "report"}, b"").then(lambda end: told(_report(end)))
        else:
            told(Report(alive=False))

    async def report(self) -> Report:
        answer: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.look(lambda report: None if answer.done() else answer.set_result(report))
        return await answer

    def _submit(self, header: Header, body: bytes) -> Pending:
        identifier = next(self._identifiers)
        pending = self._pending[identifier] = Pending(self, identifier)
        self._post({"id": identifier, **header}, body)
        return pending

    @property
    def _connected(self) -> bool:
        return self._worker is not None and not self._lost.is_set()

    def _post(self, header: Header, body: bytes = b"") -> None:
        """To the worker, or to the next one when none is there."""
        if self._worker is None or self._lost.is_set():
            self._held.append((header, body))
            return
        pending = self._pending.get(header.get("id", 0))
        if pending is not None:
            pending._sent = True
        self._worker.send(header, body)

    # --- the worker's life ------------------------------------------------------------------------------------------

    async def _start_worker(self) -> None:
        config = self._config
        self._hello = asyncio.get_running_loop().create_future()
        self._lost.clear()
        launched, self._launched = self._launched or launch(), None
        worker = await WorkerProcess.start(
            launched,
            {
                "workspace": str(config.workspace),
                "home": str(config.home),
                "skills": str(config.skills),
                "spool": str(config.spool),
                "denied": [str(path) for path in config.denied],
                "allowed": [str(path) for path in config.allowed],
                "readable": [str(path) for path in config.readable],
                "host_threads": [int(name) for name in os.listdir("/proc/self/task")],
                "uid": config.uid,
                "landlock_abi": config.landlock_abi,
                "seccomp": config.seccomp,
                "shells_ahead": config.shells_ahead,
            },
            self._received,
            self._connection_lost,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                hello = await self._hello
            worker.space = _tag_space(hello)
            worker.leaf = hello["cgroup"]
            self._confinement = Confinement(
                hello["abi"], frozenset(hello["held"]), tuple(hello["exposed"]), tuple(hello["shares"])
            )
            missing = config.require - self._confinement.held
            if missing:
                raise ConfinementMissing(
                    f"Required of the kernel and missing: {', '.join(sorted(missing))}. "
                    + " ".join(self._confinement.exposed)
                )
            if self._lost.is_set():
                raise SandboxError("The worker died as soon as it had started.")
        except TimeoutError as error:
            await worker.end(0)
            raise SandboxError(f"The worker did not answer within {_START_SECONDS:g} s.") from error
        except BaseException:  # a cancelled start leaves no process either
            await worker.end(_STOP_SECONDS)
            raise
        self._worker = worker
        held, self._held = self._held, []
        for header, body in held:
            self._post(header, body)

    async def _keep(self) -> None:
        """Waits for the worker's death, again and again, and starts another."""
        backoff = _BACKOFF_FIRST_SECONDS
        while True:
            began = time.monotonic()
            await self._lost.wait()
            await self._end_worker()
            if time.monotonic() - began >= _BACKOFF_RESET_SECONDS:
                backoff = _BACKOFF_FIRST_SECONDS
            while self._worker is None:
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _BACKOFF_MOST_SECONDS)
                try:
                    await self._start_worker()
                except (SandboxError, OSError) as error:
                    self._fail(str(error), sent_only=False)

    async def _end_worker(self) -> None:
        """Ends the worker and all it left. Goes on when its caller is cancelled: nothing may be left half killed."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._ending = asyncio.create_task(worker.end(_STOP_SECONDS))
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _connection_lost(self, reason: str) -> None:
        self._lost.set()
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(SandboxError(f"The worker could not start: {reason}."))
        self._fail(reason, sent_only=True)

    def _fail(self, reason: str, *, sent_only: bool) -> None:
        for identifier, call in list(self._pending.items()):
            if call._sent or not sent_only:
                del self._pending[identifier]
                call._settle(WorkerLost(f"The sandbox's worker is gone ({reason}); what the call did is not known."))
        if not sent_only:
            self._held.clear()

    def _received(self, header: Header, body: memoryview) -> None:
        if "hello" in header or "fatal" in header:
            if self._hello is not None and not self._hello.done():
                if "hello" in header:
                    self._hello.set_result(header["hello"])
                else:
                    self._hello.set_exception(SandboxError(header["fatal"]))
            return
        pending = self._pending.pop(header["id"], None)
        if pending is not None:
            pending._settle(_outcome(header, body))


def _report(end: Outcome | SandboxError) -> Report:
    if isinstance(end, SandboxError):
        return Report(alive=False)
    assert isinstance(end, Completed)
    said = end.output
    processes = tuple(
        SandboxProcess(pid, command, session, tuple(ports)) for pid, command, session, ports in said["processes"]
    )
    return Report(True, said["pid"], said["zygote"], said["uid"], said["abi"], processes, said["more"])


def _outcome(header: Header, body: memoryview) -> Outcome:
    match header["outcome"]:
        case "failed":
            return Failed(header["code"], header["message"])
        case "bytes":
            return Completed({**header["output"], "bytes": bytes(body)})
        case _:
            return Completed(header["output"])


def _tag_space(hello: Header) -> TagSpace:
    base, width, realm, rss, locks = hello["tags"]
    return TagSpace(base, width, realm, (rss, locks))
