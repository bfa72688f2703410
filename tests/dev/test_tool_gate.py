"""The Tool Gate with real MCP servers and HTTP tools: what is answered, kept, redacted, lost, and asked for again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.turn_start import HarnessLimits
from pod_host.dev.agent import Agent
from pod_host.dev.config import Times
from pod_host.dev.runtime import Runtime
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT, Pod, Run
from tests.dev.test_gates import error_of, post
from tests.dev.test_leases import begun
from tests.dev.tool_rig import PIXEL, Books, Endpoint, endpoint, mcp_server

KINDS = pytest.mark.parametrize("kind", ["streamable-http", "sse"])
SERVER = {"server": {"serverName": "library"}}


def agent(url: str = "http://127.0.0.1:1/mcp", kind: str = "streamable-http", http: JsonObject | None = None) -> Agent:
    headers = {"X-Key": "${LIBRARY_KEY}", "X-Plain": "plain"}
    server = {"name": "library", "type": kind, "url": url, "headers": headers}
    tool = {"name": "order", "inputSchema": {"type": "object"}, **(http or {"http": {"url": "http://127.0.0.1:1/"}})}
    return Agent(name="tooled", tools=(tool,), mcp_servers=(server,))


CREDENTIALS = {"LIBRARY_KEY": "key-of-the-library", "SHOP": "token-of-the-shop"}


@dataclass
class Rig:
    """A run under way, and the servers behind its gate."""

    world: World
    run: Run
    books: Books = field(default_factory=Books)
    shop: Endpoint = field(default_factory=Endpoint)
    calls: int = 0

    async def gate(self, route: str, body: JsonObject, **more: Any) -> Json:
        response = await post(self.world, self.run, route, body, **more)
        assert response.status_code == 200, response.text
        return response.json()

    async def discover(self) -> list[JsonObject]:
        listed = (await self.gate("mcp/list", SERVER))["result"]["tools"]
        snapshot = {"snapshotSchemaVersion": 2, "servers": [{"name": "library", "tools": listed}]}
        await self.run.ask("session.mcp", snapshot=snapshot, diagnostics=[])
        return listed  # type: ignore[no-any-return]

    async def mcp_call(self, tool: str, **arguments: Json) -> JsonObject:
        """A journaled call's body."""
        self.calls += 1
        target = {"kind": "mcp", "server": "library", "tool": tool}
        effect = self.run.tool_intent(tool, target, arguments, at=f"step-{self.calls}/0")
        assert (await self.run.intent(effect))["status"] == "execute"
        return {**SERVER, "effectId": effect["effectId"], "name": tool, "arguments": arguments}

    async def http_call(self, arguments: Json) -> JsonObject:
        self.calls += 1
        effect = self.run.tool_intent("order", {"kind": "http", "tool": "order"}, arguments, at=f"step-{self.calls}/0")
        assert (await self.run.intent(effect))["status"] == "execute"
        return {"tool": {"toolName": "order"}, "effectId": effect["effectId"], "input": arguments}


async def send(rig: Rig, route: str, body: JsonObject) -> Json:
    return await rig.gate(route, body, key=body["effectId"])


async def called(rig: Rig, tool: str, **arguments: Json) -> Json:
    body = await rig.mcp_call(tool, **arguments)
    return await send(rig, "tool-calls", body)


async def ordered(rig: Rig, arguments: Json) -> Json:
    return await send(rig, "http-calls", await rig.http_call(arguments))


@asynccontextmanager
async def library_of(build: Build, kind: str = "streamable-http", **members: Any) -> AsyncIterator[Rig]:
    books = Books()
    options = members.pop("options", {})
    async with mcp_server(books, kind=kind, **options) as url:
        world = await build(agent(url, kind), **{"credentials": CREDENTIALS, **members})
        async with world.pod.connected() as channel:
            rig = Rig(world, await begun(world, channel), books)
            yield rig


@asynccontextmanager
async def shop_of(build: Build, http: JsonObject | None = None, **members: Any) -> AsyncIterator[Rig]:
    tool = members.pop("tool", {})
    async with endpoint() as shop:
        declared = {"http": {"url": shop.url, **(http or {})}, **tool}
        world = await build(agent(http=declared), **{"credentials": CREDENTIALS, **members})
        async with world.pod.connected() as channel:
            yield Rig(world, await begun(world, channel), shop=shop)


# --- MCP ---------------------------------------------------------------------------------------------------------------


@KINDS
async def test_a_server_is_connected_listed_and_called(build: Build, kind: str) -> None:
    async with library_of(build, kind) as rig:
        assert await rig.gate("mcp/connect", SERVER) == {
            "ok": True,
            "result": {"instructions": "Search before you add."},
        }
        listed = {tool["name"]: tool for tool in await rig.discover()}
        assert listed["search"]["annotations"] == {"readOnlyHint": True}
        assert listed["search"]["inputSchema"]["required"] == ["query"]
        assert set(listed["count"]) == {"name", "description", "inputSchema", "outputSchema"}
        answer = await called(rig, "search", query="ships")
        assert answer["ok"] is True
        assert answer["result"]["content"] == [{"type": "text", "text": "1 book on ships"}]
        assert (await called(rig, "count"))["result"]["structuredContent"] == {"books": 3}
        cover = (await called(rig, "cover"))["result"]["content"]
        assert (cover[1]["type"], base64.b64decode(cover[1]["data"])) == ("image", PIXEL)
        failed = (await called(rig, "burn"))["result"]
        assert failed["isError"] is True
        assert "not burnt here" in failed["content"][0]["text"]


@pytest.mark.parametrize("options", [{"json_response": True}, {"stateless_http": True}])
async def test_a_server_may_answer_in_either_form(build: Build, options: JsonObject) -> None:
    async with library_of(build, options=options) as rig:
        await rig.discover()
        assert (await called(rig, "search", query="a"))["ok"] is True


@KINDS
async def test_a_tool_gets_its_calls_key_and_trace(build: Build, kind: str) -> None:
    async with library_of(build, kind) as rig:
        await rig.discover()
        body = await rig.mcp_call("add", title="a")
        trace = f"00-{'1' * 32}-{'2' * 16}-01"
        await rig.gate("tool-calls", body, key=body["effectId"], traceparent=trace)
        meta = rig.books.metas[-1]
        assert (meta["nylorun/idempotency-key"], meta["traceparent"]) == (body["effectId"], trace)


@KINDS
async def test_credentials_reach_the_server_and_come_back_redacted(build: Build, kind: str) -> None:
    async with library_of(build, kind) as rig:
        assert "key-of-the-library" not in str(rig.run.start)
        await rig.discover()
        answer = await called(rig, "echo")
        assert rig.books.headers[-1]["x-key"] == "key-of-the-library"
        assert "key-of-the-library" not in str(answer)
        assert "[redacted]" in answer["result"]["content"][0]["text"]
        assert answer["redacted"] >= 1


async def test_a_credential_that_is_not_set_is_a_refused_authorization(build: Build) -> None:
    async with library_of(build, credentials={}) as rig:
        error = (await rig.gate("mcp/connect", SERVER))["error"]
        assert error["message"].startswith("MCP authorization refused: the variable LIBRARY_KEY is not set")
        assert rig.books.headers == []


@KINDS
@pytest.mark.parametrize(
    ("status", "code"), [(401, "credential_rejected"), (403, "mcp.forbidden"), (500, "mcp.status"), (404, "mcp.status")]
)
async def test_what_a_server_refuses_is_told_by_its_status(build: Build, kind: str, status: int, code: str) -> None:
    async with library_of(build, kind) as rig:
        await rig.discover()
        rig.books.status = status
        error = (await called(rig, "search", query="a"))["error"]
        assert (error["failure"]["code"], error["message"]) == (code, f"MCP server returned {status}")
        rig.books.status = None
        assert (await called(rig, "search", query="a"))["ok"] is True


async def test_a_server_that_refuses_from_the_first_is_told_so(build: Build) -> None:
    async with library_of(build) as rig:
        rig.books.status = 401
        error = (await rig.gate("mcp/connect", SERVER))["error"]
        assert (error["message"], error["failure"]["sent"]) == ("MCP server returned 401", False)


@pytest.mark.parametrize("kind", ["streamable-http", "sse"])
async def test_a_server_that_is_not_there_was_never_sent_to(build: Build, kind: str) -> None:
    world = await build(agent(kind=kind), credentials=CREDENTIALS)
    async with world.pod.connected() as channel:
        rig = Rig(world, await begun(world, channel))
        error = (await rig.gate("mcp/connect", SERVER))["error"]
        assert (error["failure"]["code"], error["failure"]["sent"]) == ("mcp.unreachable", False)
        assert error["failure"]["retryable"] is True


@KINDS
async def test_a_server_that_was_started_again_is_connected_anew(build: Build, kind: str) -> None:
    books = Books()
    async with AsyncExitStack() as first:
        url = await first.enter_async_context(mcp_server(books, kind=kind))
        world = await build(agent(url, kind), credentials=CREDENTIALS)
        async with world.pod.connected() as channel:
            rig = Rig(world, await begun(world, channel), books)
            await rig.discover()
            assert (await called(rig, "add", title="one"))["ok"] is True
            await first.aclose()
            assert (await called(rig, "add", title="two"))["error"]["failure"]["code"] == "mcp.unreachable"
            async with mcp_server(books, kind=kind, port=int(url.split(":")[2].split("/")[0])):
                bodies = [await rig.mcp_call("add", title=title) for title in ("three", "four")]
                answers = await asyncio.gather(*(send(rig, "tool-calls", body) for body in bodies))
                assert [answer["ok"] for answer in answers] == [True, True]
    assert sorted(title for _, title in books.calls) == ["four", "one", "three"]


async def test_a_call_runs_once_and_is_answered_the_same_each_time(build: Build) -> None:
    async with library_of(build) as rig:
        await rig.discover()
        body = await rig.mcp_call("wait")
        first = asyncio.create_task(post(rig.world, rig.run, "tool-calls", body, key=body["effectId"]))
        await asyncio.wait_for(rig.books.began.wait(), WAIT)
        first.cancel()  # the client leaves; the call goes on
        effect = rig.run.tool_intent("wait", {"kind": "mcp", "server": "library", "tool": "wait"}, {}, at="step-1/0")
        assert (await rig.run.intent(effect))["rejoin"] is True
        second = asyncio.create_task(post(rig.world, rig.run, "tool-calls", body, key=body["effectId"]))
        rig.books.held.set()
        answer = (await second).content
        assert (await post(rig.world, rig.run, "tool-calls", body, key=body["effectId"])).content == answer
        assert [name for name, _ in rig.books.calls] == ["wait"]
        other = await post(rig.world, rig.run, "tool-calls", {**body, "arguments": {"a": 1}}, key=body["effectId"])
        assert error_of(other) == (409, "gate_conflict")
        await rig.run.outcome(effect, "done")
        assert (await post(rig.world, rig.run, "tool-calls", body, key=body["effectId"])).content == answer


async def test_a_kept_answer_outlives_the_runtime(build: Build) -> None:
    async with library_of(build) as rig:
        await rig.discover()
        body = await rig.mcp_call("add", title="a")
        answer = await send(rig, "tool-calls", body)
        await rig.run.ask("lease.release", reason="shutdown")
        await rig.world.runtime.stop()
        again = Runtime(rig.world.config)
        await again.start()
        try:
            pod = Pod(again.status())
            async with pod.connected() as channel:
                run = await channel.lease()
                target = {"kind": "mcp", "server": "library", "tool": "add"}
                effect = run.tool_intent("add", target, {"title": "a"}, at="step-1/0")
                assert await run.intent(effect) | {"traceparent": ""} == {
                    "status": "execute",
                    "rejoin": True,
                    "traceparent": "",
                }
                world = World(again, rig.world.config, rig.world.model, rig.world.north, pod)
                assert (await post(world, run, "tool-calls", body, key=body["effectId"])).json() == answer
            await pod.close()
        finally:
            await again.stop()
        assert [name for name, _ in rig.books.calls] == ["add"]


async def test_a_call_that_a_stopped_runtime_left_is_counted_when_it_is_asked_for_again(build: Build) -> None:
    async with library_of(build) as rig:
        await rig.discover()
        body = await rig.mcp_call("wait")
        calling = asyncio.create_task(post(rig.world, rig.run, "tool-calls", body, key=body["effectId"]))
        await asyncio.wait_for(rig.books.began.wait(), WAIT)
        await rig.run.ask("lease.release", reason="shutdown")
        await rig.world.runtime.stop()
        await asyncio.gather(calling, return_exceptions=True)
        again = Runtime(rig.world.config)
        await again.start()
        try:
            pod = Pod(again.status())
            async with pod.connected() as channel:
                run = await channel.lease()
                effect = run.tool_intent(
                    "wait", {"kind": "mcp", "server": "library", "tool": "wait"}, {}, at="step-1/0"
                )
                answers = [await run.intent(effect) for _ in range(3)]
                assert [answer["status"] for answer in answers] == ["execute", "execute", "completed"]
                assert "rejoin" not in answers[0]
                assert answers[2]["outcome"]["value"]["code"] == "tool.interrupted"
            await pod.close()
        finally:
            await again.stop()


@pytest.mark.parametrize(("tool", "argument", "runs"), [("add", "title", 1), ("search", "query", 2)])
async def test_an_answer_that_was_lost_is_sent_again_only_to_tools_that_may_run_twice(
    build: Build, tool: str, argument: str, runs: int
) -> None:
    async with library_of(build, options={"json_response": True}) as rig:
        await rig.discover()
        rig.books.cut = True
        body = await rig.mcp_call(tool, **{argument: "a"})
        error = (await send(rig, "tool-calls", body))["error"]
        assert (error["failure"]["code"], error["failure"]["sent"]) == ("mcp.lost", True)
        rig.books.cut = False
        again = await send(rig, "tool-calls", body)
        assert again["ok"] is (runs == 2)
        assert len(rig.books.calls) == runs


@pytest.mark.parametrize("options", [{"json_response": True}, {"json_response": False}])
async def test_an_answer_that_is_too_large_is_refused(build: Build, options: JsonObject) -> None:
    async with library_of(build, options=options, limits=HarnessLimits(tool_answer_bytes=100_000)) as rig:
        await rig.discover()
        assert (await called(rig, "whole", size=90_000))["ok"] is True
        error = (await called(rig, "whole", size=200_000))["error"]
        assert error["failure"]["code"] == "mcp.too-large"


async def test_arguments_that_were_not_journaled_are_warned_of(build: Build) -> None:
    async with library_of(build) as rig:
        await rig.discover()
        body = await rig.mcp_call("search", query="a")
        assert (await send(rig, "tool-calls", {**body, "arguments": {"query": "b"}}))["ok"] is True
        texts = [warning["text"] for warning in (await rig.world.north.get("/v1/warnings"))["warnings"]]
        assert any("are not its intent's input" in text for text in texts)


async def test_arguments_that_the_server_does_not_take_are_its_own_error(build: Build) -> None:
    async with library_of(build) as rig:
        await rig.discover()
        answer = await called(rig, "search", nothing=1)
        assert answer["result"]["isError"] is True


async def test_a_cancel_ends_the_call_and_its_fate_is_unknown(build: Build) -> None:
    async with library_of(build) as rig:
        await rig.discover()
        body = await rig.mcp_call("wait")
        calling = asyncio.create_task(send(rig, "tool-calls", body))
        await asyncio.wait_for(rig.books.began.wait(), WAIT)
        key = body["effectId"].replace(":", "%3A").replace("/", "%2F")
        assert (await post(rig.world, rig.run, f"tool-calls/{key}/cancel", {})).status_code == 204
        assert (await calling)["error"]["uncertain"] is True


async def test_a_connection_that_nobody_uses_is_closed_and_opened_again_on_demand(build: Build) -> None:
    async with library_of(build, "sse", times=Times(mcp_idle=0.0)) as rig:
        await rig.discover()
        first = rig.books.sessions
        assert (await called(rig, "search", query="a"))["ok"] is True
        assert rig.books.sessions > first


async def test_sessions_share_no_connection(build: Build) -> None:
    async with library_of(build, "sse") as rig, rig.world.pod.connected() as channel:
        await rig.gate("mcp/connect", SERVER)
        other = Rig(rig.world, await begun(rig.world, channel), rig.books)
        await other.gate("mcp/connect", SERVER)
        assert rig.books.sessions == 2
        assert (await post(rig.world, rig.run, "mcp/close", SERVER)).status_code == 204


# --- HTTP --------------------------------------------------------------------------------------------------------------


async def test_an_http_tool_gets_its_input_its_key_and_its_credential(build: Build) -> None:
    http = {"method": "PUT", "credential": "SHOP", "headers": {"X-Key": "${LIBRARY_KEY}"}}
    async with shop_of(build, http) as rig:
        body = await rig.http_call({"what": "tea"})
        answer = await rig.gate("http-calls", body, key=body["effectId"], traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
        assert answer == {"ok": True, "result": {"kind": "completed", "output": {"got": {"what": "tea"}}}}
        ((method, headers, received),) = rig.shop.requests
        assert (method, received) == ("PUT", {"what": "tea"})
        assert headers["idempotency-key"] == body["effectId"]
        assert headers["authorization"] == "Bearer token-of-the-shop"
        assert headers["x-key"] == "key-of-the-library"
        assert headers["traceparent"].startswith("00-1111")
        assert await send(rig, "http-calls", body) == answer
        assert len(rig.shop.requests) == 1


async def test_what_an_http_tool_echoes_of_a_credential_is_redacted(build: Build) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"you sent": request.headers["Authorization"], "token-of-the-shop": 1})

    async with shop_of(build, {"credential": "SHOP"}) as rig:
        rig.shop.answer = echo
        result = (await ordered(rig, {}))["result"]
        assert result["output"] == {"you sent": "Bearer [redacted]", "[redacted]": 1}
        assert result["redacted"] == 2


def answering(status: int = 200, **members: Any) -> Any:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, **members)

    return answer


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (answering(text="plain words"), "plain words"),
        (answering(204), None),
        (answering(201, text="[1, 2]"), [1, 2]),
    ],
)
async def test_an_answer_is_json_or_text_or_nothing(build: Build, answer: Any, output: Json) -> None:
    async with shop_of(build) as rig:
        rig.shop.answer = answer
        assert (await ordered(rig, {}))["result"] == {"kind": "completed", "output": output}


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (answering(500, text="x" * 5000), "http.status", f"The server returned 500: {'x' * 2000}"),
        (answering(302, headers={"Location": "http://127.0.0.1:1/"}), "http.status", "The server returned 302: "),
        (answering(401), "credential_rejected", "The server returned 401"),
        (answering(body=b"\xff\xfe\xfd"), "http.invalid-response", "The answer is neither JSON nor text"),
        (answering(text="x" * 20_000), "http.too-large", "The answer is larger than 10000 bytes"),
        (answering(text='{"n": "one"}'), "tool.invalid-output", None),
    ],
)
async def test_what_goes_wrong_at_an_http_tool_is_told_by_its_code(
    build: Build, answer: Any, code: str, message: str | None
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    limits = HarnessLimits(tool_answer_bytes=10_000)
    async with shop_of(build, tool={"outputSchema": schema}, limits=limits) as rig:
        rig.shop.answer = answer
        result = (await ordered(rig, {}))["result"]
        assert (result["kind"], result["code"]) == ("failed", code)
        assert message is None or result["message"] == message


async def test_a_slow_http_tool_is_given_up(build: Build) -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with shop_of(build, {"timeoutMs": 50}) as rig:
        rig.shop.answer = slow
        assert (await ordered(rig, {}))["result"]["code"] == "http.timeout"


async def test_an_answer_that_was_lost_on_its_way_has_an_unknown_fate_and_stays_so(build: Build) -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with shop_of(build) as rig:
        rig.shop.answer = cut
        body = await rig.http_call({})
        answer = await send(rig, "http-calls", body)
        assert answer["error"]["uncertain"] is True
        rig.shop.answer = None
        assert await send(rig, "http-calls", body) == answer
        assert len(rig.shop.requests) == 1


async def test_an_http_tool_that_is_not_there(build: Build) -> None:
    world = await build(agent())
    async with world.pod.connected() as channel:
        result = (await ordered(Rig(world, await begun(world, channel)), {}))["result"]
        assert result["code"] == "http.unreachable"


async def test_a_call_whose_credential_is_not_set_is_not_sent(build: Build) -> None:
    async with shop_of(build, {"credential": "NOT_SET"}) as rig:
        result = (await ordered(rig, {}))["result"]
        assert (result["code"], rig.shop.requests) == ("http.credential", [])
