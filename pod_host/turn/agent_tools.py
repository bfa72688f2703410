"""Agents used as tools (Harness API v5, sections 3 and 4): the model calls one like any tool, and it runs a loop of its own
within the turn.

What it does are effects of the turn, journaled as they come, under ids within its call's. The call itself is a ``harness``
effect, which a crash would interrupt for good: so its intent and its outcome come when the agent has ended. Until then a run
that starts over starts the agent over, whose recorded effects are replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import HarnessTarget
from pod_host.contract.transcript import Entry, InputEntry
from pod_host.contract.turn_start import TurnStart
from pod_host.turn.agents import UsedAgent
from pod_host.turn.endings import TurnFailure, TurnThrown
from pod_host.turn.journal import Execution, Fate, Known
from pod_host.turn.projection import json_text
from pod_host.turn.results import failure
from pod_host.turn.tool_arguments import ArgumentCheck
from pod_host.turn.toolset import Tool

RunAgent: TypeAlias = Callable[[UsedAgent, JsonObject, str], Awaitable[Json]]
"""Runs an agent on a call's arguments, for the call of this effect id; its last answer. Raises TurnFailure when it has none,
and what ends the turn."""


@dataclass(frozen=True, slots=True)
class AgentTools:
    """Those that one agent uses. ``slots``: of those that run at once."""

    agents: Sequence[UsedAgent]
    run_agent: RunAgent
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.AGENTS_AT_ONCE))

    def tools(self) -> Iterable[Tool]:
        for agent in self.agents:
            yield Tool(
                name=agent.name,
                description=agent.description,
                input_schema=agent.input_schema,
                target=HarnessTarget(kind="harness"),
                parallel=True,
                check=ArgumentCheck(agent.name, agent.input_schema),
                run=partial(self._run, agent),
                runs_first=True,
            )

    async def _run(self, agent: UsedAgent, arguments: JsonObject, execution: Execution) -> Fate:
        try:
            async with self.slots:
                output = await self.run_agent(agent, arguments, execution.effect_id)
        except TurnThrown:
            raise
        except TurnFailure as fault:
            code = f"agent.{fault.code.removeprefix('model.')}"
            return Known(failure(code, f"The agent {agent.name} failed: {fault.message}"))
        return Known({"kind": "completed", "output": output})


def start_of(agent: UsedAgent, start: TurnStart) -> TurnStart:
    """The turn as ``agent`` sees it: its own manifest and model, nothing of the session's past, a memory that it only
    views, and no wakes."""
    named = agent.model.id if agent.model else None
    known = named is None or (start.model is not None and named == start.model.id)
    return start.model_copy(
        update={
            "manifest": agent.manifest,
            "model": start.model if known else None,
            "checkpoint": start.checkpoint.model_copy(update={"state": None}),
            "agent": start.agent and start.agent.model_copy(update={"self_wake": False}),
            "memory": start.memory and start.memory.model_copy(update={"access": "read_only", "instructions": None}),
        }
    )


def message_entry(arguments: JsonObject, turn_id: str) -> Entry:
    """What the agent is told: the message alone where the call has nothing else, else its arguments as JSON."""
    alone = isinstance(arguments.get("message"), str) and len(arguments) == 1
    text = arguments["message"] if alone else json_text(arguments)
    return InputEntry(kind="input", turn_id=turn_id, event={"kind": "user-message", "text": text}).wire()


def task_section() -> str:
    """What the prompt says to an agent used as a tool."""
    return (
        "# Task\n"
        "- Another agent calls you as its tool. It sees your last answer, the one without tool calls, and nothing else of"
        " your work; you cannot ask it back.\n"
        f"- You have {limits.AGENT_STEPS} answers at most."
    )
