"""OpenAI's models and compatible servers, over the wire form of chat completions."""

from __future__ import annotations

import base64

import openai
import pytest
from aiohttp import web

from pod_host.contract.base import JsonObject
from pod_host.dev.models import choose_model
from pod_host.dev.models.openai import OpenAIModel
from pod_host.errors import ConfigurationError
from tests.dev.provider_rig import Provider, a_call, a_file, provider, refusal


def model_at(served: Provider, *, compatible: bool = False) -> OpenAIModel:
    client = openai.AsyncOpenAI(api_key="key", base_url=f"{served.url}/v1", max_retries=0)
    return OpenAIModel(client, "gpt-test", compatible=compatible)


def completion(message: JsonObject, finish: str = "stop", **members: object) -> web.Response:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": None, **message}}
    body = {"id": "chatcmpl_1", "object": "chat.completion", "created": 1, "model": "gpt-test-1", "usage": usage}
    return web.json_response({**body, "choices": [choice], **members})


def tool_call(arguments: str, call_id: str = "call_1") -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": "read", "arguments": arguments}}


async def test_an_answer_becomes_a_candidate() -> None:
    message = {"content": "I look.", "reasoning_content": "Hm.", "tool_calls": [tool_call('{"path": "a.txt"}')]}
    async with provider(completion(message, "tool_calls")) as served:
        answer = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert answer["output"] == [
        {"type": "reasoning", "text": "Hm.", "providerMetadata": {"openai": {"member": "reasoning_content"}}},
        {"type": "text", "text": "I look."},
        {"type": "tool-call", "id": "call_1", "name": "read", "args": {"path": "a.txt"}},
    ]
    assert answer["finishReason"] == "tool-calls"
    assert answer["usage"] == {
        "inputTokens": 6,
        "outputTokens": 7,
        "totalTokens": 17,
        "cachedTokens": 4,
        "reasoningTokens": 3,
    }
    assert answer["evidence"]["requestId"] == "chatcmpl_1"
    assert answer["evidence"]["extras"]["producer"] == {
        "provider": "openai",
        "api": "chat-completions",
        "model": "gpt-test-1",
    }


async def test_a_call_becomes_a_request_with_reasoning_results_and_files() -> None:
    message = {"content": None, "reasoning": "Hm.", "tool_calls": [tool_call("{}")]}
    image = {"type": "media", "mediaType": "image/png", "reference": {"artifactId": "af_1", "version": 1}}
    pdf = {"type": "media", "mediaType": "application/pdf", "reference": {"artifactId": "af_1", "name": "a.pdf"}}
    async with provider(completion(message, "tool_calls"), completion({"content": "tea"})) as served:
        model = model_at(served)
        first = await model.answer(a_call(), effect_id="e", files=a_file)
        await model.answer(
            a_call(
                {"kind": "message", "role": "assistant", "content": first["output"]},
                {
                    "kind": "tool-result",
                    "toolCallId": "call_1",
                    "toolName": "read",
                    "status": "completed",
                    "content": [{"type": "text", "text": '"tea"'}, image],
                },
                {"kind": "message", "role": "user", "content": [{"type": "text", "text": "and this?"}, pdf]},
                model={"id": "gpt-other", "controls": {"maxOutputTokens": 99, "temperature": 0}, "config": {"x": 1}},
            ),
            effect_id="e",
            files=a_file,
        )
    data = base64.b64encode(b"bytes").decode()
    body = served.bodies[1]
    assert served.paths == ["/v1/chat/completions"] * 2
    assert served.headers[1]["authorization"] == "Bearer key"
    assert (body["model"], body["max_completion_tokens"], body["temperature"], body["x"]) == ("gpt-other", 99, 0, 1)
    assert body["tools"][0]["function"]["parameters"]["properties"] == {"path": {"type": "string"}}
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "What is in it?"}]},
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '"tea"'},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Files of read's result:"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and this?"},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}},
            ],
        },
    ]


async def test_a_compatible_server_gets_the_older_names() -> None:
    async with provider(completion({"content": "hi"})) as served:
        model = model_at(served, compatible=True)
        await model.answer(a_call(model={"controls": {"maxOutputTokens": 9}}), effect_id="e", files=a_file)
    assert served.bodies[0]["max_tokens"] == 9
    assert "max_completion_tokens" not in served.bodies[0]


async def test_arguments_that_are_no_object_stay_as_they_came() -> None:
    async with provider(completion({"tool_calls": [tool_call('{"path": "a.')]}, "length")) as served:
        answer = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert answer["output"][0]["args"] == answer["output"][0]["raw"] == '{"path": "a.'
    assert answer["finishReason"] == "length"


@pytest.mark.parametrize(
    ("message", "finish", "told"),
    [
        ({"content": "x"}, "stop", "stop"),
        ({"content": "x"}, "length", "length"),
        ({"content": "x"}, "content_filter", "content-filter"),
        ({"tool_calls": [tool_call("{}")]}, "stop", "tool-calls"),
        ({"content": "x"}, "odd", "other"),
    ],
)
async def test_why_it_stopped_is_told(message: JsonObject, finish: str, told: str) -> None:
    async with provider(completion(message, finish)) as served:
        answer = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert answer["finishReason"] == told


async def test_a_server_that_counts_nothing_gives_no_usage() -> None:
    async with provider(completion({"content": "x"}, usage=None)) as served:
        answer = await model_at(served).answer(a_call(), effect_id="e", files=a_file)
    assert "usage" not in answer


def error(code: str | None, message: str = "no") -> JsonObject:
    return {"error": {"code": code, "type": "error", "message": message, "param": None}}


@pytest.mark.parametrize(
    ("answer", "code", "retryable", "after"),
    [
        (refusal(429, error("rate_limit_exceeded"), retry_after_ms="250"), "rate_limited", True, 250),
        (refusal(429, error("insufficient_quota")), "auth", False, None),
        (refusal(503, error(None)), "overloaded", True, None),
        (refusal(500, error(None)), "transient", True, None),
        (refusal(401, error("invalid_api_key")), "auth", False, None),
        (refusal(400, error("context_length_exceeded")), "context_overflow", False, None),
        (refusal(400, error(None, "the maximum context length is 8")), "context_overflow", False, None),
        (refusal(400, error("content_filter")), "content_policy", False, None),
        (refusal(400, error(None, "bad")), "invalid_request", False, None),
        (refusal(404, error("model_not_found")), "invalid_request", False, None),
        (completion({}, choices=[]), "invalid_output", False, None),
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


async def test_a_server_that_is_not_there_is_told_with_the_cause() -> None:
    model = choose_model({"OPENAI_API_KEY": "mine", "OPENAI_BASE_URL": "http://127.0.0.1:1"})
    failure = await model.answer(a_call(), effect_id="e", files=a_file)
    assert (failure["code"], failure["message"]) == ("transient", "Connection error: All connection attempts failed")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "http://localhost:0", "http://[::1"])
@pytest.mark.parametrize("name", ["OPENAI", "ANTHROPIC"])
def test_a_base_url_that_is_none_is_told(name: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}_BASE_URL is no URL; write http://"):
        choose_model({f"{name}_API_KEY": "mine", f"{name}_BASE_URL": url})


async def test_a_file_that_a_compatible_server_does_not_read_is_refused_before_anything_is_sent() -> None:
    part = {"type": "media", "mediaType": "application/pdf", "reference": {"artifactId": "af_1"}}
    async with provider() as served:
        failure = await model_at(served, compatible=True).answer(
            a_call({"kind": "message", "role": "user", "content": [part]}), effect_id="e", files=a_file
        )
    assert failure["code"] == "unsupported_input"
    assert served.bodies == []


async def test_a_key_chooses_it_and_a_base_url_makes_it_any_compatible_server() -> None:
    async with provider(completion({"content": "hi"})) as served:
        environ = {"OPENAI_API_KEY": "mine", "OPENAI_BASE_URL": f"{served.url}/api", "OPENAI_MODEL": "llama"}
        model = choose_model(environ)
        assert model.descriptor.inputs == ["text", "image"]
        await model.answer(a_call(), effect_id="e", files=a_file)
    assert served.paths == ["/api/chat/completions"]
    assert served.bodies[0]["model"] == "llama"
