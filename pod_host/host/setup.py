"""The Agent's setup: its input files and commands, run once per volume by the worker (Harness API v5, section 9).

It runs after ``hello``, so that the Runtime sees a live host, and before the first lease. Each step is recorded when it is
over; after a crash the step that was cut off runs again, and those before it do not. A failure stops the rest: turns are
taken all the same, each with a note for the model (`Setup.note`) as long as the volume lives.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.open_points import SetupCommand, SetupFault, SetupFile, SetupStep, read_setup
from pod_host.errors import ContractViolation, SandboxError, WorkerLost
from pod_host.host import setup_record
from pod_host.host.log import get_log, redactor
from pod_host.host.setup_record import SetupRecord, SetupRecordError, StepResult
from pod_host.sandbox import AppendLog, Command, Completed, Failed, Outcome, PutFile, Request, Sandbox

LOG_NAME = "setup.log"  # in the commands' HOME
TAIL_CHARACTERS = 4096  # of a step's output, in events and in the note
NAME_CHARACTERS = 200  # of a step's path, name or command, there
SESSION = "setup"  # to the worker, a setup is a session of its own

log = get_log()


class Setup:
    """``environment``: a command's whole environment, from the variables of its own that a step names."""

    def __init__(
        self,
        harness_dir: Path,
        workspace_dir: Path,
        sandbox: Sandbox,
        environment: Callable[[Mapping[str, str]], Mapping[str, str]],
    ) -> None:
        self._harness_dir = harness_dir
        self._workspace_dir = workspace_dir
        self._sandbox = sandbox
        self._environment = environment
        self._record: SetupRecord | None = None
        self._trouble: str | None = None  # of the record itself
        self._loaded = False
        self._running: asyncio.Task[None] | None = None

    @property
    def note(self) -> str | None:
        """For the model, in every turn of a volume whose setup failed. The same text as long as the volume lives."""
        if self._trouble is not None:
            return f"The setup of this sandbox could not be run: {self._trouble}."
        if self._record is None or self._record.state != "failed":
            return None
        failed, record = self._record.over[-1], self._record
        words = [
            f"The setup of this sandbox failed at step {len(record.over)} of {record.steps} ({failed.what}):"
            f" {failed.reason}. The steps after it did not run; ~/{LOG_NAME} holds the output."
        ]
        if failed.output:
            words.append(f"The end of the failed step's output:\n{failed.output}")
        return "\n".join(words)

    async def offer(self, setup: Json, seeded: bool) -> None:
        """What a join's answer says of the setup. Recorded before anything else happens: it may never be said again."""
        try:
            await asyncio.to_thread(self._accept, setup, seeded)
        except (SetupRecordError, ContractViolation) as fault:  # a record, or a setup nested without end
            self._trouble = str(fault)
            log.error("setup.failed", reason=str(fault))

    async def settle(self) -> None:
        """Returns when no step is left to run, now or ever. Cancelling the caller leaves the setup running: see `stop`."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="setup")
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Break the running step off: its command is killed, and it runs again when the volume is next in use."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    # --- the record ---------------------------------------------------------------------------------------------------

    def _accept(self, setup: Json, seeded: bool) -> None:
        if not self._loaded:
            self._record = setup_record.load(self._harness_dir)
            self._loaded = True
        known = self._record
        if seeded:
            if known is None:
                self._keep(SetupRecord(state="seeded", hash=""))
        elif setup is not None:
            offered = hashlib.sha256(canonical(setup)).hexdigest()
            if known is None:
                self._keep(SetupRecord(state="running", hash=offered, setup=setup, steps=len(read_setup(setup))))
            elif known.hash != offered:
                log.warning("setup.ignored", reason=f"this volume's setup is another one and is {known.state}")

    def _keep(self, record: SetupRecord) -> None:
        setup_record.save(self._harness_dir, record)
        self._record = record

    # --- the steps ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        record = self._record
        if record is None or record.state != "running" or self._trouble is not None:
            return
        steps = read_setup(record.setup)
        over = list(record.over)
        log.info("setup.started", of=len(steps), over=len(over) or None)
        started = time.monotonic()
        try:
            for number, step in enumerate(steps[len(over) :], start=len(over) + 1):
                result = await self._step(step, number, len(steps))
                over.append(result)
                if result.reason is not None:
                    await self._end(record, "failed", over)
                    return
                await asyncio.to_thread(self._keep, record.model_copy(update={"over": tuple(over)}))
            await self._end(record, "done", over)
            log.info("setup.done", of=len(steps), durationMs=_milliseconds(started))
        except SetupRecordError as fault:
            self._trouble = str(fault)
            log.error("setup.failed", reason=str(fault))

    async def _end(self, record: SetupRecord, state: setup_record.State, over: list[StepResult]) -> None:
        ended = record.model_copy(update={"state": state, "over": tuple(over), "setup": None})
        await asyncio.to_thread(self._keep, ended)

    async def _step(self, step: SetupStep, number: int, of: int) -> StepResult:
        what = _name(step)
        log.info("setup.step", step=number, of=of, what=what)
        started = time.monotonic()
        try:
            outcome = await self._run_step(step)
        except WorkerLost:  # the kernel may have wanted memory; a second time it is the step's own doing
            outcome = await self._run_again(step)
        except SandboxError as fault:
            outcome = Failed(fault.code, str(fault))
        reason, exit_code, output = _judge(outcome)
        tail = redactor.clean(output[-TAIL_CHARACTERS:])
        result = StepResult(
            what=what,
            exit_code=exit_code,
            duration_ms=_milliseconds(started),
            reason=reason,
            output=tail if reason else "",
        )
        fields: dict[str, Any] = {
            "step": number,
            "of": of,
            "what": what,
            "exitCode": exit_code,
            "durationMs": result.duration_ms,
        }
        if reason is None:
            log.info("setup.output", **fields, output=tail or None)
        else:
            log.error("setup.failed", **fields, output=tail or None, reason=reason, log=f"~/{LOG_NAME}")
        await self._append(f"[{number}/{of}] {what}\n{_line(output)}{_line(reason or '')}")
        return result

    async def _run_again(self, step: SetupStep) -> Outcome:
        try:
            return await self._run_step(step)
        except SandboxError as fault:
            return Failed(fault.code, str(fault))

    async def _run_step(self, step: SetupStep) -> Outcome:
        match step:
            case SetupFile():
                return await self._done(PutFile(SESSION, step.path, step.content, step.mode))
            case SetupCommand():
                return await self._done(
                    Command(
                        session=SESSION,
                        command=step.command,
                        cwd=os.path.join(self._workspace_dir, step.cwd or ""),
                        environment=self._environment(step.env),
                        timeout_seconds=step.timeout_seconds or limits.SETUP_COMMAND_SECONDS,
                    )
                )
            case SetupFault():
                return Failed("setup.invalid", f"{step.where}: {step.problem}")

    async def _append(self, text: str) -> None:
        try:
            outcome = await self._done(AppendLog(SESSION, LOG_NAME, text))
        except SandboxError as fault:
            outcome = Failed(fault.code, str(fault))
        if isinstance(outcome, Failed):  # a full disk, say: the events hold the end of the output all the same
            log.warning("setup.log_unwritten", reason=outcome.message)

    async def _done(self, request: Request) -> Outcome:
        """Raises SandboxError. Cancelled, it aborts what it asked for."""
        return await self._sandbox.ask(request)


def _name(step: SetupStep) -> str:
    """What the step is called, for people: text, and not long."""
    name = _what(step).encode("utf-8", "backslashreplace").decode()
    return name if len(name) <= NAME_CHARACTERS else name[:NAME_CHARACTERS] + "…"


def _what(step: SetupStep) -> str:
    match step:
        case SetupFile():
            return step.path
        case SetupCommand():
            return step.name or step.command
        case SetupFault():
            return step.where


def _judge(outcome: Outcome) -> tuple[str | None, int | None, str]:
    """Why the step failed (None: it did not), its exit code when it was a command, and what it printed."""
    if isinstance(outcome, Failed):
        return outcome.message, None, ""
    assert isinstance(outcome, Completed)
    result: JsonObject = outcome.output
    exit_code = result.get("exitCode")
    if exit_code is None:
        return None, None, ""
    output = f"{_line(result['stdout'])}{result['stderr']}".strip()
    if result.get("timedOut"):
        return "its time was over", exit_code, output
    return (f"exit code {exit_code}" if exit_code else None), exit_code, output


def _line(text: str) -> str:
    return f"{text}\n" if text and not text.endswith("\n") else text


def _milliseconds(since: float) -> int:
    return round((time.monotonic() - since) * 1000)
