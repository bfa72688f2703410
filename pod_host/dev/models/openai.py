"""OpenAI's models, and every server that speaks its chat completions, through OpenAI's SDK.

Servers that show their reasoning put it in a member of their own; its name stays in ``providerMetadata``, and the text
goes back under it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import openai
from openai.types.chat import ChatCompletion

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.turn_start import ModelDescriptor
from pod_host.dev.models.base import FileReader, ModelAnswer, ModelRefusal, failed
from pod_host.dev.models.failures import refusal, unreached
from pod_host.dev.models.media import IMAGES, PDF, fetch

PROVIDER: Final = "openai"
API: Final = "chat-completions"
DEFAULT_MODEL: Final = "gpt-5-mini"
CONTEXT_WINDOW: Final = 128_000  # tokens; a server's own limit shows as context_overflow
MAX_OUTPUT_TOKENS: Final = 16_384
TIMEOUT_SECONDS: Final = 600.0  # the Model Gate's own for a provider
REASONING_MEMBERS: Final = ("reasoning_content", "reasoning")
_FINISH: Final = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
}


class OpenAIModel:
    """``compatible``: another server than OpenAI's own: older names of members, fewer kinds of file."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, *, compatible: bool = False) -> None:
        self._client = client
        self._model = model
        self._compatible = compatible

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> OpenAIModel:
        """``OPENAI_API_KEY``, ``OPENAI_BASE_URL`` and ``OPENAI_MODEL``."""
        base_url = environ.get("OPENAI_BASE_URL") or None
        client = openai.AsyncOpenAI(api_key=environ["OPENAI_API_KEY"], base_url=base_url, timeout=TIMEOUT_SECONDS)
        return cls(client, environ.get("OPENAI_MODEL") or DEFAULT_MODEL, compatible=base_url is not None)

    @property
    def descriptor(self) -> ModelDescriptor:
        return ModelDescriptor(
            provider=PROVIDER,
            id=self._model,
            inputs=["text", "image"] if self._compatible else ["text", "image", "pdf"],
            context_window=CONTEXT_WINDOW,
            max_output_tokens=MAX_OUTPUT_TOKENS,
        )

    async def answer(self, call: JsonObject, *, effect_id: str, files: FileReader) -> ModelAnswer:
        try:
            request = await self._request(call, files)
            completion: ChatCompletion = await self._client.chat.completions.create(**request)
        except ModelRefusal as fault:
            return failed(fault.code, str(fault))
        except openai.APITimeoutError as fault:
            return failed("timeout", str(fault), retryable=True)
        except openai.APIStatusError as fault:
            hint = "; name a model with OPENAI_MODEL" if fault.status_code == 404 else ""
            return refusal(
                fault.status_code, (fault.code, fault.type), f"{fault.message}{hint}", fault.response.headers
            )
        except openai.APIError as fault:
            return unreached(fault)
        return self._candidate(completion)

    async def _request(self, call: JsonObject, files: FileReader) -> dict[str, Any]:
        choice = call.get("model") or {}
        controls = choice.get("controls") or {}
        request: dict[str, Any] = {
            "model": choice.get("id") or self._model,
            "messages": await self._messages(call["prompt"], files),
        }
        if call["tools"]:
            request["tools"] = [_tool(tool) for tool in call["tools"]]
        if "maxOutputTokens" in controls:
            name = "max_tokens" if self._compatible else "max_completion_tokens"
            request[name] = controls["maxOutputTokens"]
        if "temperature" in controls:
            request["temperature"] = controls["temperature"]
        if choice.get("config"):
            request["extra_body"] = choice["config"]
        return request

    async def _messages(self, prompt: list[JsonObject], files: FileReader) -> list[JsonObject]:
        """The files of tool results follow the step's results in a user message: a tool's message holds text alone."""
        messages: list[JsonObject] = []
        shown: list[JsonObject] = []
        for item in prompt:
            if item["kind"] != "tool-result" and shown:
                messages.append({"role": "user", "content": shown})
                shown = []
            if item["kind"] == "tool-result":
                messages.append({"role": "tool", "tool_call_id": item["toolCallId"], "content": _text(item)})
                media = [await self._media(part, files) for part in item["content"] if part["type"] == "media"]
                if media:
                    shown += [{"type": "text", "text": f"Files of {item['toolName']}'s result:"}, *media]
            elif item.get("role") == "assistant":
                messages.append(_assistant(item))
            elif item["kind"] == "instructions":
                messages.append({"role": "system", "content": _text(item)})
            else:
                messages.append(
                    {"role": "user", "content": [await self._user_part(part, files) for part in item["content"]]}
                )
        return [*messages, {"role": "user", "content": shown}] if shown else messages

    async def _user_part(self, part: JsonObject, files: FileReader) -> JsonObject:
        return {"type": "text", "text": part["text"]} if part["type"] == "text" else await self._media(part, files)

    async def _media(self, part: JsonObject, files: FileReader) -> JsonObject:
        media = await fetch(part, files, IMAGES if self._compatible else IMAGES | {PDF})
        if media.media_type == PDF:
            return {"type": "file", "file": {"filename": media.name, "file_data": media.data_url}}
        return {"type": "image_url", "image_url": {"url": media.data_url}}

    def _candidate(self, completion: ChatCompletion) -> ModelAnswer:
        if not completion.choices:
            return failed("invalid_output", "The answer holds no choice")
        choice = completion.choices[0]
        output = _output(choice.message)
        calls = any(block["type"] == "tool-call" for block in output)
        finish = _FINISH.get(choice.finish_reason or "", "other")
        answer: ModelAnswer = {
            "output": output,
            # Some servers say stop though they call tools.
            "finishReason": "tool-calls" if calls and finish == "stop" else finish,
            "evidence": {
                "requestId": completion.id,
                "resolvedModel": completion.model,
                "extras": {
                    "producer": {"provider": PROVIDER, "api": API, "model": completion.model},
                    "contextWindow": CONTEXT_WINDOW,
                    "maxOutputTokens": MAX_OUTPUT_TOKENS,
                },
            },
        }
        if completion.usage:
            answer["usage"] = _usage(completion.usage)
        return answer


# --- To the provider -------------------------------------------------------------------------------------------------


def _text(item: JsonObject) -> str:
    return "\n".join(part["text"] for part in item["content"] if part["type"] == "text")


def _assistant(item: JsonObject) -> JsonObject:
    message: JsonObject = {"role": "assistant"}
    calls = []
    for part in item["content"]:
        if part["type"] == "tool-call":
            args = part["args"] if isinstance(part["args"], str) else json.dumps(part["args"], ensure_ascii=False)
            function = {"name": part["name"], "arguments": args}
            calls.append({"id": part["id"], "type": "function", "function": function})
        elif part["type"] == "reasoning":
            member = ((part.get("providerMetadata") or {}).get(PROVIDER) or {}).get("member")
            if member in REASONING_MEMBERS:
                message[member] = message.get(member, "") + part["text"]
    text = _text(item)
    if text or not calls:
        message["content"] = text
    return {**message, "tool_calls": calls} if calls else message


def _tool(tool: JsonObject) -> JsonObject:
    described = {"description": tool["description"]} if tool.get("description") else {}
    return {"type": "function", "function": {"name": tool["name"], **described, "parameters": tool["inputSchema"]}}


# --- From the provider -----------------------------------------------------------------------------------------------


def _output(message: Json) -> list[JsonObject]:
    extra = message.model_extra or {}
    blocks: list[JsonObject] = []
    for member in REASONING_MEMBERS:
        if isinstance(extra.get(member), str) and extra[member]:
            metadata = {PROVIDER: {"member": member}}
            blocks.append({"type": "reasoning", "text": extra[member], "providerMetadata": metadata})
            break  # some servers send both, with the same text
    if message.content or message.refusal:
        blocks.append({"type": "text", "text": message.content or message.refusal})
    for call in message.tool_calls or []:
        if call.type == "function":
            blocks.append(
                {"type": "tool-call", "id": call.id, "name": call.function.name} | _args(call.function.arguments)
            )
    return blocks


def _args(text: str) -> JsonObject:
    """An answer that was cut holds half an object: it stays as it came, and the harness refuses it to the model."""
    try:
        args = json.loads(text or "{}")
    except ValueError:
        args = None
    return {"args": args} if isinstance(args, dict) else {"args": text, "raw": text}


def _usage(usage: Json) -> JsonObject:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (prompt.cached_tokens if prompt else None) or 0
    counted: JsonObject = {
        "inputTokens": max(0, usage.prompt_tokens - cached),  # theirs counts the cached ones in
        "outputTokens": usage.completion_tokens,
        "totalTokens": usage.total_tokens,
        "cachedTokens": cached,
    }
    if completion and completion.reasoning_tokens is not None:
        counted["reasoningTokens"] = completion.reasoning_tokens
    return counted
