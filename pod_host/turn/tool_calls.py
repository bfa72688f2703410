"""The one place where a tool call is about to run: known? → fits its schema? → intent → run → shape → outcome.

What narrows calls further (policies, hooks, approvals of our own) belongs into `ToolCalls._refusal`, before the intent:
a refused call has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.canonical import canonical, sha256_hex
from pod_host.contract.effects import HarnessTarget, HttpTarget, McpTarget, RuntimeTarget, ToolIntent
from pod_host.errors import InputIssue
from pod_host.turn.candidates import Call
from pod_host.turn.endings import Stopped, Waits
from pod_host.turn.identity import Identities
from pod_host.turn.journal import Execution, Fate, Held, IntentTooLarge, Journal, Known, Unknown
from pod_host.turn.ports import GatePort
from pod_host.turn.results import failure, fit, fit_step, json_bytes, share_bytes, smaller, tool_result
from pod_host.turn.shaping import Shaper, StepBudget
from pod_host.turn.stop import Stop
from pod_host.turn.text import shortened
from pod_host.turn.tool_search import found_in
from pod_host.turn.toolset import Tool, Toolset
from pod_host.turn.tracing import code_of, span

_ISSUES = 10  # shown to the model of one call
_ISSUE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Tool calls of one segment."""

    ids: Identities
    tools: Toolset
    journal: Journal
    gates: GatePort
    stop: Stop
    record_entry_bytes: int
    shaper: Shaper

    async def run_step(self, step: int, calls: Sequence[Call]) -> list[JsonObject]:
        """The results of a step's calls, in their order, within what one entry may hold.

        Calls are started in their order and run beside one another. Raises Waits when some are held, Stopped, or what
        failed the turn: each only after all calls have settled.
        """
        calls = [self.tools.meant(call) for call in calls]
        reader = self.shaper.reader
        share = share_bytes(self.record_entry_bytes, min(len(calls), limits.STEP_CALLS), reader.step_bytes)
        line, budget = _Line(), StepBudget(reader.step_bytes, reader.results_bytes, len(calls))
        tasks = [
            asyncio.create_task(self._call(step, call, line.join(alone=self._alone(call)), share, budget))
            for call in calls
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.done() and task.exception() for task in tasks):
                self.stop.stop("failure")
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()  # those still there when the turn's own task was cancelled
            await asyncio.gather(*tasks, return_exceptions=True)
        _raise_worst(tasks)
        self.stop.check()
        settled = [task.result() for task in tasks]
        held = [result for result in settled if isinstance(result, Waits)]
        if held:
            raise _all_of(held)
        results = fit_step([result for result in settled if not isinstance(result, Waits)], self.record_entry_bytes)
        self.tools.find(found_in(results))
        return results

    async def _call(self, step: int, call: Call, place: _Place, share: int, budget: StepBudget) -> JsonObject | Waits:
        try:
            tool = self.tools.get(call.name)
            refusal = self._refusal(call, tool)
            if tool is None or refusal is not None:
                budget.waiting -= 1
                return tool_result(call.id, call.name, fit(refusal, share))
            intent = self.ids.tool(
                step,
                call.index,
                call_id=call.id,
                tool_name=call.name,
                target=tool.target,
                arguments=call.args,
                skill=tool.skill_of(call.args),
            )
            if isinstance(tool.target, RuntimeTarget):
                await place.turn()  # core runs it as it takes the intent, so its turn comes before that
            run = partial(self._run, tool, call, place, share, budget)
            if tool.runs_first and not self.journal.knows(intent.effect_id):
                fate = await run(Execution(intent.effect_id, traceparent=None, rejoin=False))
                run = partial(_ran, fate)
            settled = await self.journal.settle(intent, _hash(intent), run, smaller)
            if isinstance(settled, Held):
                return Waits("waiting" if settled.status == "pending" else "uncertain", [settled.effect_id])
            if settled.replayed:
                budget.spend(json_bytes(settled.value))
            return tool_result(call.id, call.name, fit(settled.value, share))
        except Waits as waits:  # of a call that has effects of its own: those beside it go on
            return waits
        except IntentTooLarge as refusal:
            text = f"The call is too large to be recorded, so it did not run: {refusal.message}. Send it in parts."
            return tool_result(call.id, call.name, fit(failure("tool.input-too-large", text), share))
        finally:
            place.settle()

    def _refusal(self, call: Call, tool: Tool | None) -> JsonObject | None:
        """Why a call has no effect at all, as an outcome's value; None when it may go on to its intent."""
        if call.index >= limits.STEP_CALLS:
            text = f"At most {limits.STEP_CALLS} calls run in one step; this one did not. Send it again."
            return failure("tool.too-many", text)
        if call.cut:
            text = "The answer ended at its length limit within this call, so it did not run. Send it again, in parts."
            return failure("tool.cut-off", text)
        if tool is None:
            there = ", ".join(self.tools.names)
            text = f"There is no tool named {call.name}. " + (f"There are: {there}" if there else "There are none.")
            return failure("tool.unknown", text)
        if not isinstance(call.args, dict):
            issue = InputIssue(path=[], code="not_an_object", message=f"the input of {call.name} is an object")
            return _invalid_input(call.name, [issue])
        issues = tool.check(call.args)
        return _invalid_input(call.name, issues) if issues else None

    def _alone(self, call: Call) -> bool:
        tool = self.tools.get(call.name)
        return tool is not None and not tool.parallel

    async def _run(
        self, tool: Tool, call: Call, place: _Place, share: int, budget: StepBudget, execution: Execution
    ) -> Fate:
        await place.turn()
        if tool.ready is not None:
            with suppress(Stopped):  # the answer to that is below
                await tool.ready()
        if self.stop.reason is not None:
            if tool.runs_first or isinstance(tool.target, McpTarget | HttpTarget):
                raise Stopped(self.stop.reason)  # it may run, or have run, in part: the next owner goes on with it
            return Known(failure("tool.interrupted", "The call was not started: the turn was being stopped."))
        # A call is handed over before its first wait, so the next one starts once this task has come to that.
        asyncio.get_running_loop().call_soon(place.start)
        # What the harness runs itself fits its result as it makes it; the others' are cut as they come.
        most = min(share, budget.even) if isinstance(tool.target, HarnessTarget) else share
        async with self.gates.claim() as claim:  # an answer holds its room until it is shaped
            with span("tool", effect_id=execution.effect_id, tool=tool.name, target=tool.target.kind) as marks:
                fate = await tool.run(call.args, replace(execution, most_bytes=most, claim=claim))
                marks.set(error_type=_error_type(fate))
            if isinstance(fate, Unknown):
                return Unknown(shortened(fate.error, share // 4))  # core makes the call's failure of it
            if isinstance(fate, Known) and isinstance(tool.target, McpTarget | HttpTarget):
                shaped = await self.shaper.shape(
                    fate.value, effect_id=execution.effect_id, tool_name=tool.name, most_bytes=share, budget=budget
                )
                return Known(fit(shaped, share))
            if not isinstance(fate, Known):
                return fate
            value = fit(fate.value, most if isinstance(tool.target, HarnessTarget) else min(share, budget.most))
            budget.spend(json_bytes(value))
            return Known(value)


class _Line:
    """The order of a step's calls: each starts after those before it have started (or settled without)."""

    def __init__(self) -> None:
        self._last: _Place | None = None

    def join(self, *, alone: bool) -> _Place:
        """``alone``: the call runs beside no other of its step."""
        self._last = _Place(self._last, alone=alone)
        return self._last


class _Place:
    def __init__(self, before: _Place | None, *, alone: bool) -> None:
        self._before = before
        self._alone = alone
        self._started = asyncio.Event()
        self._settled = asyncio.Event()

    async def turn(self) -> None:
        """Wait until the call may start."""
        before = self._before
        while before is not None:
            await (before._settled if self._alone or before._alone else before._started).wait()
            before = before._before

    def start(self) -> None:
        self._started.set()

    def settle(self) -> None:
        """The call is over, or will not start."""
        self._started.set()
        self._settled.set()


def _error_type(fate: Fate) -> str | None:
    """For a span: the code of a call that failed."""
    if not isinstance(fate, Known):
        return "unknown_fate"
    value = fate.value
    failed = isinstance(value, dict) and value.get("kind") == "failed"
    return code_of(str(value.get("code"))) if failed else None


def _hash(intent: ToolIntent) -> str:
    return sha256_hex(canonical(intent.wire()))


async def _ran(fate: Fate, execution: Execution) -> Fate:
    return fate


def _all_of(held: Sequence[Waits]) -> Waits:
    """``waiting`` while a person is to answer for any of them."""
    pending = [waits for waits in held if waits.status == "waiting"]
    effect_ids = [effect_id for waits in pending or held for effect_id in waits.effect_ids]
    return Waits("waiting" if pending else "uncertain", effect_ids)


def _raise_worst(tasks: Sequence[asyncio.Task[JsonObject | Waits]]) -> None:
    """What failed the step, before what was only stopped for it."""
    faults = [fault for task in tasks if (fault := task.exception()) is not None]
    for fault in sorted(faults, key=lambda fault: isinstance(fault, Stopped)):
        raise fault


def _invalid_input(name: str, issues: Sequence[InputIssue]) -> JsonObject:
    shown = [
        {
            "path": [part[:_ISSUE_CHARACTERS] if isinstance(part, str) else part for part in issue["path"]],
            "code": issue["code"],
            "message": issue["message"][:_ISSUE_CHARACTERS],
        }
        for issue in issues[:_ISSUES]
    ]
    told = "; ".join(f"{'.'.join(map(str, issue['path'])) or 'input'}: {issue['message']}" for issue in shown)
    return {
        **failure("tool.invalid-input", f"{name} did not run, its input does not fit: {told}"),
        "details": {"phase": "input", "issues": shown},
    }
