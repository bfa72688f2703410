"""The model of an endurance run: it says what the message planned, from the prompt alone."""

from __future__ import annotations

import asyncio
import json
import zlib
from dataclasses import dataclass, field

from pod_host.contract.base import JsonObject
from pod_host.contract.turn_start import ModelDescriptor
from pod_host.dev.models import FileReader
from tests.endurance.plans import MESSAGE_MARK


@dataclass(frozen=True)
class PlannedModel:
    descriptor: ModelDescriptor = field(
        default_factory=lambda: ModelDescriptor(
            provider="fixture", id="planned", inputs=["text"], context_window=4_000_000, max_output_tokens=8192
        )
    )

    async def answer(self, call: JsonObject, *, effect_id: str, files: FileReader) -> JsonObject:
        plan, done = read_plan(call["prompt"])
        # It thinks, each time for as long.
        await asyncio.sleep(zlib.crc32(f"{plan['turn']}{done}".encode()) % 20 / 1000)
        if done == len(plan["steps"]):
            return _said([{"type": "text", "text": f"end of {plan['turn']}"}], "stop")
        calls = plan["steps"][done]
        blocks = [
            {"type": "tool-call", "id": f"call-{call['key']}", "name": call["tool"], "args": call["args"]}
            for call in calls
        ]
        return _said(blocks, "tool-calls")


def read_plan(prompt: list[JsonObject]) -> tuple[JsonObject, int]:
    """The plan of the last message, and how many of its steps the prompt holds."""
    plan: JsonObject = {}
    done = 0
    for item in prompt:
        if item["kind"] != "message":
            continue
        text = "".join(part["text"] for part in item["content"] if part["type"] == "text")
        if item["role"] == "user" and text.startswith(MESSAGE_MARK):
            plan, done = json.loads(text), 0
        elif item["role"] == "assistant":
            done += 1
    return plan, done


def _said(blocks: list[JsonObject], reason: str) -> JsonObject:
    return {"output": blocks, "finishReason": reason, "usage": {"inputTokens": 1, "outputTokens": 1}}
