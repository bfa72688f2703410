"""A Runtime in process with a scripted model, and what a test asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pod_host.contract.base import JsonObject
from pod_host.contract.turn_start import ModelDescriptor
from pod_host.dev.agent import Agent
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.models import FileReader
from pod_host.dev.runtime import Runtime
from tests.dev.harness import North, Pod


@dataclass
class ScriptedModel:
    """Answers with what the test put in, else with a text; ``held`` keeps a call open until the test lets it go."""

    descriptor: ModelDescriptor = field(
        default_factory=lambda: ModelDescriptor(
            provider="fixture", id="scripted", inputs=["text", "image"], context_window=1000, max_output_tokens=100
        )
    )
    answers: list[JsonObject] = field(default_factory=list)
    calls: list[tuple[str, JsonObject]] = field(default_factory=list)
    called: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event | None = None

    async def answer(self, call: JsonObject, *, effect_id: str, files: FileReader) -> JsonObject:
        self.calls.append((effect_id, call))
        self.called.set()
        if self.held is not None:
            await self.held.wait()
        if self.answers:
            return self.answers.pop(0)
        return {"output": [{"type": "text", "text": "fine"}], "finishReason": "stop", "usage": {"inputTokens": 3}}


@dataclass
class World:
    """One Runtime under test, its model, a client and a pod."""

    runtime: Runtime
    config: RuntimeConfig
    model: ScriptedModel
    north: North
    pod: Pod

    def other_pod(self, **change: Any) -> Pod:
        return Pod(self.runtime.status(), **change)


Build = Callable[..., Awaitable[World]]


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    """Start Runtimes with the given members of RuntimeConfig; all are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(agent: Agent | None = None, **members: Any) -> World:
            model = members.pop("model", None) or ScriptedModel()
            config = RuntimeConfig(state_dir=tmp_path / "state", agent=agent or Agent(name="tester"), model=model)
            config = replace(config, **members)
            runtime = Runtime(config)
            await runtime.start()
            stack.push_async_callback(runtime.stop)
            north = North(runtime.north_url)
            stack.push_async_callback(north.close)
            pod = Pod(runtime.status())
            stack.push_async_callback(pod.close)
            return World(runtime, config, model, north, pod)

        yield start


@pytest.fixture
async def world(build: Build) -> World:
    return await build()
