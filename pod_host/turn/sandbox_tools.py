"""The six tools of the session's sandbox as a provider (Harness API v5, sections 3 and 4: target ``sandbox``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.effects import SandboxTarget
from pod_host.errors import InputIssue, InvalidToolInput, SandboxError, WorkerLost
from pod_host.sandbox.outcomes import Completed, Outcome
from pod_host.sandbox.tools.inputs import TOOL_INPUTS, WRITING_TOOLS, input_schema, parse_input
from pod_host.sandbox.tools.texts import tool_texts
from pod_host.turn.endings import Stopped
from pod_host.turn.journal import Execution, Fate, Known, Unknown
from pod_host.turn.ports import SandboxPort
from pod_host.turn.results import failure
from pod_host.turn.skill_files import SkillMounts
from pod_host.turn.skills import NO_SKILLS, Skills
from pod_host.turn.stop import Stop
from pod_host.turn.toolset import Tool


@dataclass(frozen=True, slots=True)
class SandboxTools:
    """``traceparent``: the turn's, for calls whose intent is answered without one. ``skills`` are mounted before a call."""

    sandbox: SandboxPort
    workspace: str
    traceparent: str | None
    stop: Stop
    skills: Skills = NO_SKILLS
    mounts: SkillMounts | None = None

    def tools(self) -> Iterable[Tool]:
        texts = tool_texts(self.workspace)
        for name in TOOL_INPUTS:
            yield Tool(
                name=name,
                description=texts[name],
                input_schema=input_schema(name),
                target=SandboxTarget(kind="sandbox"),
                parallel=True,  # the sandbox orders its own: writers one after another, a read after earlier writers
                check=partial(_check, name),
                run=partial(self._run, name),
                skill_of=self.skills.named_in,
                ready=self.mounts.mount_all if self.mounts and self.skills else None,
            )

    async def _run(self, name: str, arguments: JsonObject, execution: Execution) -> Fate:
        try:
            outcome = await self._outcome(name, arguments, execution)
        except WorkerLost as lost:
            if name in WRITING_TOOLS:
                return Unknown(f"The sandbox was lost while the call ran, so it may have been done in part: {lost}")
            return Known(failure("sandbox.error", str(lost)))
        except SandboxError as fault:
            return Known(failure("sandbox.error", str(fault)))
        if isinstance(outcome, Completed):
            return Known({"kind": "completed", "output": outcome.output})
        return Known(failure(outcome.code, outcome.message))

    async def _outcome(self, name: str, arguments: JsonObject, execution: Execution) -> Outcome:
        """How the call ended; a stop aborts it, and what it gave until then is its outcome."""
        call = self.sandbox.start(name, arguments, traceparent=execution.traceparent or self.traceparent)
        ending = asyncio.ensure_future(call.outcome())
        try:
            if not await self.stop.until(ending):
                call.abort()
                await asyncio.wait({ending}, timeout=limits.STOP_SECONDS)
            if ending.cancelled():
                raise WorkerLost("the sandbox gave the call up")
            if ending.done():
                return ending.result()
        finally:
            if not ending.done():  # the sandbox does not end it in time, or the turn's own task was cancelled
                call.abort()
                ending.cancel()
                await asyncio.wait({ending})
        assert self.stop.reason is not None  # only a stop ends the wait before the call does
        raise Stopped(self.stop.reason)


def _check(name: str, arguments: JsonObject) -> Sequence[InputIssue]:
    try:
        parse_input(name, arguments)
    except InvalidToolInput as fault:
        return fault.issues
    return ()
