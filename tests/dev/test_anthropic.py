"""Claude models over the wire form of Anthropic's Messages API."""

from __future__ import annotations

import asyncio
import base64
import json

import anthropic
import pytest
from aiohttp import web

from pod_host.contract.base import JsonObject
from pod_host.dev.models import choose_model
from pod_host.dev.models.anthropic import AnthropicModel
from tests.dev.provider_rig import Provider, a_call, a_file, provider, refusal


def model_at(served: Provider) -> AnthropicModel:
    client = anthropic.AsyncAnthropic(api_key="key", base_url=served.url, max_retries=0)
    return AnthropicModel(client, "claude-test")


def events(*blocks: tuple[JsonObject, list[JsonObject]], stop: str = "end_turn") -> web.Response:
    """A streamed message: each block as it starts, and its deltas."""
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test-1", "content": []}
    lines: list[JsonObject] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    ]
    for index, (block, deltas) in enumerate(blocks):
        lines.append({"type": "content_block_start", "index": index, "content_block": block})
        lines += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        lines.append({"type": "content_block_stop", "index": index})
    lines.append(
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 7}}
    )
    lines.append({"type": "message_stop"})
    return streamed(lines)


def streamed(lines: list[JsonObject]) -> web.Response:
    text = "".join(f"event: {line['type']}\ndata: {json.dumps(line)}\n\n" for line in lines)
    return web.Response(text=text, content_type="text/event-stream", headers={"request-id": "req_1"})


TEXT = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Hel"}, {"type": "text_delta", "text": "lo"}])
THINKING = (
    {"type": "thinking", "thinking": "", "signature": ""},
    [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "sig"}],
)
REDACTED: tuple[JsonObject, list[JsonObject]] = ({"type": "redacted_thinking", "data": "sealed"}, [])
TOOL_USE = (
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    [
        {"type": "input_json_delta", "partial_json": '{"path": "a'},
        {"type": "input_json_delta", "partial_json": '.txt"}'},
    ],
)


async def test_an_answer_becomes_a_candidate() -> None:
    async with provider(events(THINKING, REDACTED, TEXT, TOOL_USE, stop="tool_use")) as served:
        answer = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert answer["output"] == [
        {"type": "reasoning", "text": "Hm.", "providerMetadata": {"anthropic": {"signature": "sig"}}},
        {"type": "reasoning", "text": "", "providerMetadata": {"anthropic": {"redactedData": "sealed"}}},
        {"type": "text", "text": "Hello"},
        {"type": "tool-call", "id": "toolu_1", "name": "read", "args": {"path": "a.txt"}},
    ]
    assert answer["finishReason"] == "tool-calls"
    assert answer["usage"] == {
        "inputTokens": 10,
        "outputTokens": 7,
        "totalTokens": 23,
        "cachedTokens": 4,
        "cacheWriteTokens": 2,
    }
    assert answer["evidence"]["requestId"] == "req_1"
    assert answer["evidence"]["resolvedModel"] == "claude-test-1"
    assert answer["evidence"]["extras"]["producer"]["provider"] == "anthropic"


async def test_a_call_becomes_a_request_with_reasoning_results_and_files() -> None:
    async with provider(events(THINKING, TOOL_USE, stop="tool_use"), events(TEXT)) as served:
        model = model_at(served)
        first = await model.answer(a_call(), effect_id="e", files=a_file)
        foreign = {"type": "reasoning", "text": "not ours", "providerMetadata": {"openai": {"member": "reasoning"}}}
        image = {"type": "media", "mediaType": "image/png", "reference": {"artifactId": "af_1", "version": 1}}
        pdf = {"type": "media", "mediaType": "application/pdf", "reference": {"artifactId": "af_1", "version": 1}}
        other_call = {"type": "tool-call", "id": "call:2", "name": "read", "args": {}}
        await model.answer(
            a_call(
                {"kind": "message", "role": "assistant", "content": [*first["output"], foreign, other_call]},
                {
                    "kind": "tool-result",
                    "toolCallId": "toolu_1",
                    "toolName": "read",
                    "status": "completed",
                    "content": [{"type": "text", "text": '"tea"'}, image],
                },
                {"kind": "tool-result", "toolCallId": "call:2", "toolName": "read", "status": "failed", "content": []},
                {"kind": "message", "role": "user", "content": [{"type": "text", "text": " "}, pdf]},
                {"kind": "context", "role": "user", "content": [{"type": "text", "text": "It is late."}]},
                model={
                    "id": "claude-other",
                    "controls": {"maxOutputTokens": 99, "temperature": 0.5},
                    "config": {"x": 1},
                },
            ),
            effect_id="e",
            files=a_file,
        )
    data = base64.b64encode(b"bytes").decode()
    body = served.bodies[1]
    assert served.paths == ["/v1/messages"] * 2
    assert served.headers[1]["authorization"] == "Bearer key"
    assert body["system"] == "Be kind."
    assert (body["model"], body["max_tokens"], body["temperature"], body["x"]) == ("claude-other", 99, 0.5, 1)
    assert body["tools"] == [
        {
            "name": "read",
            "description": "Reads a file.",
            "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
        }
    ]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "What is in it?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt"}},
                {"type": "tool_use", "id": "call_2", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": '"tea"'},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "call_2", "is_error": True},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}},
                {"type": "text", "text": "It is late."},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("stop", "finish"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "content-filter"), ("pause_turn", "other")],
)
async def test_why_it_stopped_is_told(stop: str, finish: str) -> None:
    async with provider(events(TEXT, stop=stop)) as served:
        answer = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert answer["finishReason"] == finish


def error(kind: str, message: str = "no") -> JsonObject:
    return {"type": "error", "error": {"type": kind, "message": message}}


@pytest.mark.parametrize(
    ("answer", "code", "retryable", "after"),
    [
        (refusal(429, error("rate_limit_error"), retry_after="7"), "rate_limited", True, 7000),
        (refusal(529, error("overloaded_error")), "overloaded", True, None),
        (refusal(500, error("api_error")), "transient", True, None),
        (refusal(401, error("authentication_error")), "auth", False, None),
        (refusal(403, error("permission_error")), "auth", False, None),
        (refusal(400, error("invalid_request_error", "bad tools")), "invalid_request", False, None),
        (refusal(404, error("not_found_error", "model: x")), "invalid_request", False, None),
        (refusal(400, error("invalid_request_error", "prompt is too long: 9 > 8")), "context_overflow", False, None),
        (streamed([error("overloaded_error")]), "overloaded", True, None),
        (events(stop="refusal"), "content_policy", False, None),
        (ConnectionResetError(), "transient", True, None),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
async def test_a_refusal_becomes_a_failure(
    answer: web.Response | BaseException, code: str, retryable: bool, after: int | None
) -> None:
    async with provider(answer) as served:
        failure = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert (failure["kind"], failure["code"], failure["retryable"]) == ("failed", code, retryable)
    assert failure.get("retryAfterMs") == after
    assert failure["message"]


async def test_a_provider_that_does_not_answer_is_a_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = anthropic.AsyncAnthropic(api_key="key", base_url=f"http://127.0.0.1:{port}", max_retries=0, timeout=0.2)
    async with server:
        failure = await AnthropicModel(client, "m").answer(a_call(), effect_id="e", files=a_file)
        await client.close()
    assert (failure["code"], failure["retryable"]) == ("timeout", True)


@pytest.mark.parametrize(
    ("media_type", "artifact", "code"),
    [("text/plain", "af_1", "unsupported_input"), ("image/png", "af_2", "invalid_request")],
)
async def test_a_file_that_cannot_be_shown_is_refused_before_anything_is_sent(
    media_type: str, artifact: str, code: str
) -> None:
    part = {"type": "media", "mediaType": media_type, "reference": {"artifactId": artifact, "version": 1}}
    async with provider() as served:
        failure = await model_at(served).answer(
            a_call({"kind": "message", "role": "user", "content": [part]}), effect_id="e", files=a_file
        )
    assert (failure["code"], failure["retryable"]) == (code, False)
    assert served.bodies == []


async def test_a_key_chooses_it() -> None:
    async with provider(events(TEXT)) as served:
        environ = {"ANTHROPIC_API_KEY": "mine", "ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_MODEL": "claude-mine"}
        model = choose_model(environ)
        assert (model.descriptor.provider, model.descriptor.id) == ("anthropic", "claude-mine")
        await model.answer(a_call(), effect_id="e", files=a_file)
    assert served.headers[0]["authorization"] == "Bearer mine"
    assert served.bodies[0]["model"] == "claude-mine"
