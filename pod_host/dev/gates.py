"""The gates listener: who may call, for which run, under which key (Harness API v5, section 5)."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import unquote

from aiohttp import web

from pod_host.contract.base import Id, Json, JsonObject, Sent, Text1, Wire
from pod_host.contract.canonical import effect_request_hash
from pod_host.contract.encoding import decode
from pod_host.contract.model_call import (
    HTTP_CALLS_PATH,
    MCP_CLOSE_PATH,
    MCP_CONNECT_PATH,
    MCP_LIST_PATH,
    MODEL_CALLS_PATH,
    TOOL_CALLS_PATH,
    McpCloseBody,
    McpConnectBody,
    McpListBody,
    ModelCallBody,
    ServerName,
    ToolCallBody,
)
from pod_host.dev.authority import RUN, Authority, TokenRefused
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import load
from pod_host.dev.journal import Journal
from pod_host.dev.leases import Leases
from pod_host.dev.listening import base_url, bearer, error_answer, host_names, json_answer, read_body, serve
from pod_host.dev.mcp_servers import ToolCall
from pod_host.dev.model_gate import ModelGate
from pod_host.dev.record import Record
from pod_host.dev.sessions import Sessions
from pod_host.dev.snapshots import is_repeatable
from pod_host.dev.targets import tool_setting
from pod_host.dev.tool_gate import ToolGate
from pod_host.errors import ContractViolation, GateRefusal
from pod_host.limits import MIB

HASHED_BYTES: Final = 1 * MIB  # a larger call's hash would hold the loop up for too long


class HttpToolName(Sent):
    """Proposed: v5 says only that the body names a manifest tool."""

    agent_id: Text1 | None = None
    tool_name: Text1


class HttpCallBody(Sent):
    any_json = frozenset({"input"})
    tool: HttpToolName
    effect_id: Id
    turn_id: Id | None = None
    input: Json = None


BodyT = TypeVar("BodyT", bound=Wire)
Route = Callable[[web.BaseRequest, JsonObject], Awaitable[web.Response]]


class Gates:
    """``claims`` everywhere: those of a good run token. Every refusal is a GateRefusal."""

    def __init__(
        self,
        config: RuntimeConfig,
        listener: socket.socket,
        record: Record,
        authority: Authority,
        sessions: Sessions,
        leases: Leases,
        journal: Journal,
        models: ModelGate,
        tools: ToolGate,
    ) -> None:
        self._config = config
        self._listener = listener
        self.url = base_url(listener)
        self._record = record
        self._authority = authority
        self._sessions = sessions
        self._leases = leases
        self._journal = journal
        self._models = models
        self._tools = tools
        self._hosts = host_names(listener, config.allowed_hosts)
        self._runner: web.ServerRunner | None = None
        self._routes: dict[str, Route] = {
            MODEL_CALLS_PATH: self._model_call,
            MCP_CONNECT_PATH: self._mcp_connect,
            MCP_LIST_PATH: self._mcp_list,
            MCP_CLOSE_PATH: self._mcp_close,
            TOOL_CALLS_PATH: self._tool_call,
            HTTP_CALLS_PATH: self._http_call,
        }

    async def start(self) -> None:
        self._runner = await serve(self._answer, self._listener)

    async def stop(self) -> None:
        await self._models.stop()
        await self._tools.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._route(request)
        except GateRefusal as refusal:
            return error_answer(refusal.status, refusal.code, refusal.message)

    async def _route(self, request: web.BaseRequest) -> web.Response:
        if request.path in ("/health", "/ready"):
            return json_answer({"ok": True})
        if request.headers.get("Host", "").lower() not in self._hosts:
            raise GateRefusal(421, "host_rejected", "the Host header is not this gate's")
        cancelled = _cancelled_key(request.raw_path)
        route = self._routes.get(request.path)
        if cancelled is None and route is None:
            return error_answer(404, "not_found", f"no route {request.path}")
        if request.method != "POST":
            return error_answer(405, "method_not_allowed", "POST is needed", {"Allow": "POST"})
        claims = self._claims(request)
        if cancelled is not None:
            for gate in (self._models, self._tools):  # for an old run too: it may still stop what it started
                gate.cancel(cancelled, claims["ses"])
            return web.Response(status=204)
        if not self._leases.is_live(claims["run"]):
            raise GateRefusal(409, "run_stale", "the run is over")
        assert route is not None
        return await route(request, claims)

    def _claims(self, request: web.BaseRequest) -> JsonObject:
        token = bearer(request)
        try:
            if token is None:
                raise TokenRefused("a run token is needed")
            return self._authority.check(RUN, token)
        except TokenRefused as fault:
            raise GateRefusal(401, "gate_unauthorized", str(fault)) from None

    async def _body(self, request: web.BaseRequest, shape: type[BodyT], most: int) -> tuple[BodyT, int]:
        raw = await read_body(request, most)
        if raw is None:
            raise GateRefusal(400, "invalid_request", f"the body is over {most} bytes")
        try:
            return shape.read(decode(raw)), len(raw)
        except ContractViolation as fault:
            raise GateRefusal(400, "invalid_request", str(fault)) from None

    def _journaled(self, request: web.BaseRequest, claims: JsonObject, effect_id: str, kind: str) -> sqlite3.Row:
        """The row that was answered ``execute`` and runs now."""
        key = request.headers.get("Idempotency-Key")
        if not key:
            raise GateRefusal(400, "key_required", "Idempotency-Key: the effect id is needed")
        if key != effect_id:
            raise GateRefusal(400, "invalid_request", "Idempotency-Key is not the body's effectId")
        row = self._journal.row(effect_id)
        if row is not None and row["session_id"] != claims["ses"]:
            raise GateRefusal(403, "gate_forbidden", "the effect is another session's")
        known = self._tools.knows(effect_id) if kind == "tool" else self._models.knows(effect_id)
        runs = row is not None and (row["status"] == "invoking" or known)
        if row is None or row["kind"] != kind or row["turn_id"] != claims["trn"] or not runs:
            raise GateRefusal(409, "effect_not_journaled", f"no intent of {effect_id} was answered execute")
        return row

    # --- Model -----------------------------------------------------------------------------------------------------------

    async def _model_call(self, request: web.BaseRequest, claims: JsonObject) -> web.Response:
        body, size = await self._body(request, ModelCallBody, self._config.limits.model_call_bytes)
        if body.call.execution_id != claims["ses"]:
            raise GateRefusal(403, "gate_forbidden", "executionId is not the run's session")
        row = self._journaled(request, claims, body.effect_id, "model")
        call = body.call.wire()
        if size <= HASHED_BYTES:
            self._look_at(row, call, body.invocation_id)
        outcome = await self._models.call(body.effect_id, claims["ses"], claims["trn"], call)
        return json_answer({"outcome": outcome})

    def _look_at(self, row: sqlite3.Row, call: JsonObject, invocation_id: str) -> None:
        """Core cannot check a model intent's hash; here the call that it was made of is at hand."""
        intent: JsonObject = load(row["intent"])
        if effect_request_hash({**intent, "input": call}) != row["request_hash"]:
            self._record.warn(
                f"model call {row['id']}: its requestHash is not that of the intent with input set to this ModelCall",
                session_id=row["session_id"],
            )
        if intent["context"]["invocationId"] != invocation_id:
            self._record.warn(
                f"model call {row['id']}: invocationId is not the intent's context.invocationId",
                session_id=row["session_id"],
            )

    # --- Tools -----------------------------------------------------------------------------------------------------------

    async def _mcp_connect(self, request: web.BaseRequest, claims: JsonObject) -> web.Response:
        body, _ = await self._body(request, McpConnectBody, self._config.limits.tool_answer_bytes)
        return _json(await self._tools.connect(claims["ses"], self._declared(claims, body.server)))

    async def _mcp_list(self, request: web.BaseRequest, claims: JsonObject) -> web.Response:
        body, _ = await self._body(request, McpListBody, self._config.limits.tool_answer_bytes)
        return _json(await self._tools.list(claims["ses"], self._declared(claims, body.server), body.cursor))

    async def _mcp_close(self, request: web.BaseRequest, claims: JsonObject) -> web.Response:
        body, _ = await self._body(request, McpCloseBody, self._config.limits.tool_answer_bytes)
        await self._tools.close(claims["ses"], self._declared(claims, body.server))
        return web.Response(status=204)

    async def _tool_call(self, request: web.BaseRequest, claims: JsonObject) -> web.Response:
        body, _ = await self._body(request, ToolCallBody, self._config.limits.tool_answer_bytes)
        row = self._journaled(request, claims, body.effect_id, "tool")
        target = load(row["intent"]).get("target")
        if target != {"kind": "mcp", "server": body.server.server_name, "tool": body.name}:
            raise GateRefusal(409, "effect_not_journaled", "the journaled target is another server or tool")
        server = self._declared(claims, body.server)
        if tool_setting(server, body.name).get("enabled") is False:  # another agent's may be enabled
            raise GateRefusal(409, "effect_not_journaled", f"this agent's manifest disables {body.name}")
        self._compare(row, body.arguments)
        mcp = load(self._sessions.row(claims["ses"])["mcp"] or "null")
        call = ToolCall(body.name, body.arguments, body.effect_id, request.headers.get("traceparent"))
        repeatable = is_repeatable(mcp, server, body.name)
        return _json(await self._tools.call_mcp(claims["ses"], server, call, repeatable=repeatable))

    async def _http_call(self, request: web.BaseRequest, claims: JsonObject) -> web.Response:
        body, _ = await self._body(request, HttpCallBody, self._config.limits.tool_answer_bytes)
        row = self._journaled(request, claims, body.effect_id, "tool")
        if load(row["intent"]).get("target") != {"kind": "http", "tool": body.tool.tool_name}:
            raise GateRefusal(409, "effect_not_journaled", "the journaled target is another tool")
        self._compare(row, body.input)
        tool = self._sessions.definition(claims["ses"]).http_tools(body.tool.agent_id).get(body.tool.tool_name)
        if tool is None:
            raise GateRefusal(400, "invalid_request", f"the agent declares no HTTP tool {body.tool.tool_name}")
        traceparent = request.headers.get("traceparent")
        return _json(
            await self._tools.call_http(claims["ses"], tool, body.input, key=body.effect_id, traceparent=traceparent)
        )

    def _compare(self, row: sqlite3.Row, arguments: Json) -> None:
        """Nobody says that the gate looks; but what was journaled is not what runs."""
        if load(row["intent"])["input"] != self._authority.redact(arguments):
            self._record.warn(
                f"tool call {row['id']}: its arguments are not its intent's input", session_id=row["session_id"]
            )

    def _declared(self, claims: JsonObject, server: ServerName) -> JsonObject:
        definition = self._sessions.definition(claims["ses"])
        declared = definition.servers(server.agent_id).get(server.server_name)
        if declared is None:
            raise GateRefusal(400, "invalid_request", f"the agent declares no MCP server {server.server_name}")
        return declared


def _json(raw: bytes) -> web.Response:
    return web.Response(body=raw, content_type="application/json")


def _cancelled_key(raw_path: str) -> str | None:
    """The key of a ``…/{key}/cancel`` path, one percent-encoded segment; None for any other path."""
    path = raw_path.split("?")[0]
    for base in (MODEL_CALLS_PATH, TOOL_CALLS_PATH):
        key = path.removeprefix(f"{base}/").removesuffix("/cancel")
        if path == f"{base}/{key}/cancel" and key and "/" not in key:
            return unquote(key)
    return None
