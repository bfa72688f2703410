"""Claude models through Anthropic's SDK: a ModelCall as Messages request, the answer as ModelCandidate.

Reasoning goes round whole: a thinking block's signature (or a redacted block's data) stays in ``providerMetadata``, and
only blocks that carry ours are sent again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import anthropic
from anthropic.types import Message

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.turn_start import ModelDescriptor
from pod_host.dev.models.base import FileReader, ModelAnswer, ModelRefusal, failed
from pod_host.dev.models.failures import refusal, unreached
from pod_host.dev.models.media import IMAGES, PDF, fetch

PROVIDER: Final = "anthropic"
API: Final = "messages"
DEFAULT_MODEL: Final = "claude-sonnet-5-5"
CONTEXT_WINDOW: Final = 200_000  # tokens; every current model has at least this
MAX_OUTPUT_TOKENS: Final = 32_000
TIMEOUT_SECONDS: Final = 600.0  # the Model Gate's own for a provider
_READABLE: Final = IMAGES | {PDF}
_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
}


class AnthropicModel:
    def __init__(self, client: anthropic.AsyncAnthropic, model: str) -> None:
        self._client = client
        self._model = model

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> AnthropicModel:
        """``ANTHROPIC_API_KEY``, ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_MODEL``."""
        client = anthropic.AsyncAnthropic(
            api_key=environ["ANTHROPIC_API_KEY"],
            base_url=environ.get("ANTHROPIC_BASE_URL") or None,
            timeout=TIMEOUT_SECONDS,
        )
        return cls(client, environ.get("ANTHROPIC_MODEL") or DEFAULT_MODEL)

    @property
    def descriptor(self) -> ModelDescriptor:
        return ModelDescriptor(
            provider=PROVIDER,
            id=self._model,
            inputs=["text", "image", "pdf"],
            context_window=CONTEXT_WINDOW,
            max_output_tokens=MAX_OUTPUT_TOKENS,
        )

    async def answer(self, call: JsonObject, *, effect_id: str, files: FileReader) -> ModelAnswer:
        try:
            request = await self._request(call, files)
            # Streamed, since a long answer that comes whole may pass a proxy's patience.
            async with self._client.messages.stream(**request) as stream:
                message = await stream.get_final_message()
                request_id = stream.request_id
        except ModelRefusal as fault:
            return failed(fault.code, str(fault))
        except anthropic.APITimeoutError as fault:
            return failed("timeout", str(fault), retryable=True)
        except anthropic.APIStatusError as fault:
            kinds = (fault.error_code, fault.type)
            # An error within a stream comes with the stream's status, 200.
            status = fault.status_code if fault.status_code >= 400 else 500
            return refusal(status, kinds, fault.api_message or fault.message, fault.response.headers)
        except anthropic.APIError as fault:
            return unreached(fault)
        return self._candidate(message, request_id)

    async def _request(self, call: JsonObject, files: FileReader) -> dict[str, Any]:
        choice = call.get("model") or {}
        controls = choice.get("controls") or {}
        system = "\n\n".join(
            part["text"] for item in call["prompt"] if item["kind"] == "instructions" for part in item["content"]
        )
        request: dict[str, Any] = {
            "model": choice.get("id") or self._model,
            "max_tokens": controls.get("maxOutputTokens") or MAX_OUTPUT_TOKENS,
            "messages": await _messages(call["prompt"], files),
            "cache_control": {"type": "ephemeral"},  # a turn sends its prefix again with each step
        }
        if system.strip():
            request["system"] = system
        if call["tools"]:
            request["tools"] = [_tool(tool) for tool in call["tools"]]
        extra = dict(choice.get("config") or {})
        if "temperature" in controls:
            extra["temperature"] = controls["temperature"]
        if extra:
            request["extra_body"] = extra
        return request

    def _candidate(self, message: Message, request_id: str | None) -> ModelAnswer:
        output = [block for block in map(_block, message.content) if block is not None]
        if message.stop_reason == "refusal" and not output:
            return failed("content_policy", "The model refused to answer")
        usage = message.usage
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        counted: JsonObject = {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens + cached + written + usage.output_tokens,
            "cachedTokens": cached,
            "cacheWriteTokens": written,
        }
        if usage.output_tokens_details:
            counted["reasoningTokens"] = usage.output_tokens_details.thinking_tokens
        evidence: JsonObject = {
            "resolvedModel": message.model,
            "extras": {
                "producer": {"provider": PROVIDER, "api": API, "model": message.model},
                "contextWindow": CONTEXT_WINDOW,
                "maxOutputTokens": MAX_OUTPUT_TOKENS,
            },
        }
        if request_id:
            evidence["requestId"] = request_id
        return {
            "output": output,
            "finishReason": _FINISH.get(message.stop_reason or "", "other"),
            "usage": counted,
            "evidence": evidence,
        }


# --- To the provider -------------------------------------------------------------------------------------------------


async def _messages(prompt: list[JsonObject], files: FileReader) -> list[JsonObject]:
    """One message per run of items of one role: tool results are the user's, and come together."""
    messages: list[JsonObject] = []
    for item in prompt:
        if item["kind"] == "instructions":
            continue
        role = "assistant" if item.get("role") == "assistant" else "user"
        blocks = await _blocks(item, files)
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    return messages


async def _blocks(item: JsonObject, files: FileReader) -> list[JsonObject]:
    content = [block for part in item["content"] if (block := await _part(part, files)) is not None]
    if item["kind"] != "tool-result":
        return content
    result: JsonObject = {"type": "tool_result", "tool_use_id": _id(item["toolCallId"])}
    if content:
        result["content"] = content
    if item["status"] != "completed":
        result["is_error"] = True
    return [result]


async def _part(part: JsonObject, files: FileReader) -> JsonObject | None:
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["text"]} if part["text"].strip() else None  # blank ones are refused
        case "tool-call":
            args = part["args"] if isinstance(part["args"], dict) else {}
            return {"type": "tool_use", "id": _id(part["id"]), "name": part["name"], "input": args}
        case "reasoning":
            return _thinking(part)
        case _:
            media = await fetch(part, files, _READABLE)
            kind = "document" if media.media_type == PDF else "image"
            return {"type": kind, "source": {"type": "base64", "media_type": media.media_type, "data": media.base64}}


def _thinking(part: JsonObject) -> JsonObject | None:
    ours = (part.get("providerMetadata") or {}).get(PROVIDER) or {}
    if "redactedData" in ours:
        return {"type": "redacted_thinking", "data": ours["redactedData"]}
    if "signature" in ours:
        return {"type": "thinking", "thinking": part["text"], "signature": ours["signature"]}
    return None  # another provider's: it could not be verified


def _tool(tool: JsonObject) -> JsonObject:
    described = {"description": tool["description"]} if tool.get("description") else {}
    return {"name": tool["name"], **described, "input_schema": {"type": "object", **tool["inputSchema"]}}


def _id(call_id: str) -> str:
    """A tool call's id as this API takes it: another model's may hold other letters."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", call_id)


# --- From the provider -----------------------------------------------------------------------------------------------


def _block(block: Json) -> JsonObject | None:
    match block.type:
        case "text":
            return {"type": "text", "text": block.text}
        case "tool_use":
            return {"type": "tool-call", "id": block.id, "name": block.name, "args": block.input}
        case "thinking":
            metadata = {PROVIDER: {"signature": block.signature}}
            return {"type": "reasoning", "text": block.thinking, "providerMetadata": metadata}
        case "redacted_thinking":
            return {"type": "reasoning", "text": "", "providerMetadata": {PROVIDER: {"redactedData": block.data}}}
        case _:
            return None  # a tool that the provider runs: none is offered
