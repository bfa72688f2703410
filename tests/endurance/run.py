"""One endurance run: a pod, a Runtime, the load, and chapters of faults, each followed by a rest in which all is examined."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from pod_host.contract.base import JsonObject
from tests.endurance import invariants, leftovers
from tests.endurance.faults import Faults
from tests.endurance.gate import GateRelay
from tests.endurance.leftovers import Look
from tests.endurance.load import Load
from tests.endurance.plans import Planner
from tests.endurance.pod import Place, Pod
from tests.endurance.remote import Remote, remote_tools
from tests.endurance.report import LogFile, Report
from tests.endurance.runtime import Runtime
from tests.endurance.schedule import Fault, Size, chapter
from tests.endurance.wire import Wire
from tests.endurance.witness import Witness
from tests.host.conftest import pod_environment
from tests.sandbox.conftest import UID

STALL_SECONDS = 60.0  # without an acknowledgement, though no fault is acting
LULL_SECONDS = 15.0  # … and then the next fault comes all the same
REST_SECONDS = 120.0  # for what was begun to end
SETTLE_SECONDS = 30.0  # for what ended to be gone
TOO_LATE = ("shutdown.late", "shutdown.forced")  # what was told to end did not


class EnduranceFailed(AssertionError):
    """Something that must hold did not. Its text holds the seed, the faults that were acting, and what was found."""


async def run(seed: int, size: Size, place: Place, *, seconds: float | None = None, tell: bool = False) -> Report:
    """``seconds``: as many chapters as begin within them, whatever ``size`` says. Raises EnduranceFailed."""
    async with AsyncExitStack() as stack:
        story = Story(seed, size, place, tell=tell)
        try:
            await story.open(stack)
            await story.tell_it(seconds)
        except Exception as fault:
            raise EnduranceFailed(story.epitaph(fault)) from fault
        return story.report


class Story:
    def __init__(self, seed: int, size: Size, place: Place, *, tell: bool) -> None:
        self.seed = seed
        self.size = size
        self.report = Report(skipped=place.without)
        self._tell = tell
        self._told: list[str] = []
        self._began = time.monotonic()
        self._witness = Witness()
        self._pod = Pod(place)
        self._wire = Wire(self._witness)
        self._gate = GateRelay()
        self._first: dict[str, Look] = {}
        self._lives: dict[int, Look] = {}  # of hosts and workers, by pid: as they were at their first rest
        self._host_log = LogFile(self._pod.log)
        self._core_log = LogFile(self._pod.base / "log" / "core")
        self._seen_rows = invariants.Rows()
        self._remote: Remote
        self._runtime: Runtime
        self._load: Load
        self._faults: Faults

    async def open(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._pod.close)
        await self._pod.open()
        self._remote = await stack.enter_async_context(remote_tools())
        for relay in (self._wire, self._gate):
            await relay.start(self._pod.address)
            stack.push_async_callback(relay.stop)
        self._runtime = Runtime(self._pod.base, self._core_arguments())
        stack.push_async_callback(self._runtime.close)
        await self._runtime.start()
        self._wire.upstream = self._runtime.port("harness")
        self._gate.upstream = self._runtime.port("gates")
        await self._revive()
        self._load = Load(self._runtime, Planner(self._pod.ledger, self._pod.workspace), self.seed)
        self._load.start(self.size.sessions, self.size.clients)
        stack.push_async_callback(self._load.stop)
        self._faults = Faults(self._pod, self._runtime, self._wire, self._gate, self._load, self._revive)

    def _core_arguments(self) -> list[str]:
        told = {
            "join-token-file": self._pod.base / "join" / "token",
            "order-url": self._remote.order_url,
            "library-url": self._remote.library_url,
        }
        arguments = [text for name, value in told.items() for text in (f"--{name}", str(value))]
        for port in (self._wire.port, self._gate.port):
            arguments += ["--allow-host", f"{self._pod.address}:{port}"]
        return arguments

    async def _revive(self) -> None:
        base = self._pod.base / "disk"
        environment = pod_environment(
            base,
            f"http://{self._pod.address}:{self._wire.port}",
            NYLORUN_SANDBOX_ID=str(self._runtime.status["sandboxId"]),
            NYLORUN_POD_UID=str(uuid.uuid4()),
            NYLORUN_GATES_URL=f"http://{self._pod.address}:{self._gate.port}",
            NYLORUN_SANDBOX_JOIN_FILE=str(self._pod.base / "join" / "token"),
            POD_HOST_SANDBOX_UID=str(UID),
            POD_HOST_RENEW_SECONDS="5",
            POD_HOST_EGRESS="relay" if self._pod.place.relay else "direct",
            POD_HOST_LOG_LEVEL="info",
        )
        self.report.hosts += 1
        await self._pod.start_host(environment)

    # --- chapters -----------------------------------------------------------------------------------------------------

    async def tell_it(self, seconds: float | None) -> None:
        await self._warm_up()
        number = 0
        while number < self.size.chapters if seconds is None else time.monotonic() - self._began < seconds:
            self._note(f"chapter {number}")
            await self._chapter(chapter(self.seed, number, self.size))
            await self._rest(number)
            number += 1
        await self._end()
        self.report.seconds = time.monotonic() - self._began

    async def _warm_up(self) -> None:
        """Some load without a fault, and a first rest to compare the others with."""
        self._load.go()
        await self._progress(80)
        await self._rest(-1)

    async def _chapter(self, faults: list[Fault]) -> None:
        self._load.go()
        for fault in faults:
            await self._progress(fault.after)
            if fault.kind in self.report.skipped:
                continue
            self._note(str(fault))
            self.report.faults[fault.kind] += 1
            self._faults.begin(fault)
        await self._progress(10)

    async def _progress(self, acknowledgements: int) -> None:
        """Until so many more were seen, or nothing has moved for a while."""
        seen = begun = self._seen
        quiet_since = time.monotonic()
        while self._seen < begun + acknowledgements:
            await asyncio.sleep(0.02)  # no event tells of all that may stop moving
            self._load.check()
            self._faults.check()
            assert len(self._pod.exits) <= self._pod.ended, f"the host ended by itself: {self._pod.exits[-1]}"
            if self._seen != seen:
                seen, quiet_since = self._seen, time.monotonic()
            quiet = time.monotonic() - quiet_since
            if quiet > LULL_SECONDS and self._faults.acting:
                return
            assert quiet < STALL_SECONDS, f"nothing was acknowledged for {quiet:.0f} s"

    @property
    def _seen(self) -> int:
        return self._witness.progress + self._load.totals["exec completed"]

    # --- rests --------------------------------------------------------------------------------------------------------

    async def _rest(self, number: int) -> None:
        """All faults are over, nothing new is begun, everything has ended: then nothing may be left, and nothing be wrong."""
        await self._faults.healed()
        try:
            await asyncio.wait_for(self._load.rest(), REST_SECONDS)
        except TimeoutError:
            open_turns = [f"{turn.id} ({turn.plan.key})" for turn in self._load.talking.values()]
            raise AssertionError(f"turns that do not end: {open_turns}") from None
        self._load.check()
        await self._nothing_left()
        found = list(await self._wrong())
        assert not found, "\n".join([f"{len(found)} things are wrong:", *found[:40]])
        self._note(self._measure(number))

    async def _nothing_left(self) -> None:
        ends = time.monotonic() + SETTLE_SECONDS
        while left := [*leftovers.processes(self._pod), *leftovers.files(self._pod), *self._grown()]:
            assert time.monotonic() < ends, "\n".join(["this is left:", *left])
            await asyncio.sleep(0.2)

    def _grown(self) -> Iterator[str]:
        """Against the run's first rest; memory, against the first rest of the same life."""
        for name, pid in self._ours():
            if pid is None:
                continue
            look = self._look(name, pid)
            life = self._lives.setdefault(pid, look)
            yield from look.more_than(life, name)
            yield from look.more_than(self._first.setdefault(name, look), name)

    def _look(self, name: str, pid: int) -> Look:
        known: dict[str, int] = {}
        if name == "host":
            known = {"socket": self._gate.connections}
        elif name == "worker":
            ready = len(leftovers.shells(self._pod))
            known = {kind: count * ready for kind, count in leftovers.OF_A_SHELL.items()}
        return Look.at(pid, known)

    def _ours(self) -> list[tuple[str, int | None]]:
        core = self._runtime.process.pid if self._runtime.process else None
        return [("host", self._pod.host), ("worker", self._pod.worker), ("relay", self._pod.relay), ("core", core)]

    async def _wrong(self) -> list[str]:
        """What ended since the last rest, against the record, the disk and the tools outside."""
        turns, self._load.turns = self._load.turns, []
        execs, self._load.execs = self._load.execs, []
        transcripts = {
            session: (await self._runtime.ask("GET", f"/v1/sessions/{session}/transcript"))["entries"]
            for session in {turn.session for turn in turns}
        }
        database = self._runtime.database()
        try:
            record = invariants.Record(database, {turn.id for turn in turns}, self._seen_rows)
            found = list(record.check(self._witness))
            for turn in turns:
                if turn.id in record.turns:
                    found += invariants.check_turn(turn, record.turns[turn.id])
            found += invariants.check_transcripts(database, set(transcripts), transcripts)
        finally:
            database.close()
        calls = [*invariants.ran_of_turns(turns, record), *invariants.ran_of_execs(execs)]
        found += invariants.Disk(self._pod.ledger).check(calls)
        found += invariants.check_remote(calls, self._remote.orders, ("order", "careful_order"), record)
        found += invariants.check_remote(calls, self._remote.added(), ("library__add",), record)
        found += self._told_in_logs()
        found += [
            f"core warns: {warning['text']}" for warning in (await self._runtime.ask("GET", "/v1/warnings"))["warnings"]
        ]
        self.report.effects += len(record.effects)
        self._witness.forget(set(record.effects))
        self._tidy(calls)
        return found

    def _tidy(self, calls: list[invariants.Ran]) -> None:
        """What was checked need not fill the disk."""
        for ran in calls:
            if ran.call.leaves:
                Path(ran.call.leaves[0]).unlink(missing_ok=True)
        for path in self._pod.ledger.iterdir():
            path.unlink()

    def _told_in_logs(self) -> Iterator[str]:
        """Faults that a process tells of itself: they were survived, and are faults all the same."""
        for line in self._host_log.news():
            try:
                event = json.loads(line)
            except ValueError:
                yield f"host: {line}"
                continue
            # A full disk: it says so, and tries again.
            full = event["event"] == "trust.invalid" and "No space left" in event["reason"]
            harmless = event["event"] == "worker.lost" or full
            if event["event"] in TOO_LATE or (event["level"] == "error" and not harmless):
                yield f"host: {line[:2000]}"
        for line in self._core_log.news():
            if not line.startswith("WARNING"):
                yield f"core: {line}"

    def _measure(self, number: int) -> str:
        looks = {name: self._look(name, pid) for name, pid in self._ours() if pid is not None}
        rest: JsonObject = {
            "chapter": number,
            "seconds": round(time.monotonic() - self._began),
            **{f"{name} MiB": round(look.rss_mib, 1) for name, look in looks.items()},
            **{f"{name} fds": look.descriptors.total() for name, look in looks.items()},
            **{f"{name} threads": look.threads for name, look in looks.items()},
        }
        self.report.rests.append(rest)
        self.report.totals = self._load.totals
        return f"rest {json.dumps(rest)}"

    async def _end(self) -> None:
        """SIGTERM to both: they end in order, and nothing is left of them."""
        await self._pod.stop_host()
        code = await self._runtime.end(signal.SIGTERM)
        assert code == 0, f"the Runtime ended with {code} after SIGTERM"

    # --- telling ------------------------------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} {text}"
        self._told.append(line)
        if self._tell:
            print(line, flush=True)

    def epitaph(self, fault: Exception) -> str:
        again = f"python -m tests.endurance --seed {self.seed} {options_of(self.size)}"
        told = [f"seed {self.seed} ({again}): {fault!r}", str(fault), "what happened:", *self._told[-60:]]
        return "\n".join([*told, "the host's log:", *self._host_log.tail(40), "core's log:", *self._core_log.tail(20)])


def options_of(size: Size) -> str:
    """Of the command that makes a run of this size."""
    told = [(name, value) for name, value in asdict(size).items() if name != "kinds"]
    kinds = ["--kinds", *size.kinds] if size.kinds else []
    return " ".join([*(f"--{name} {value}" for name, value in told), *kinds])
