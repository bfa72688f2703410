"""The north API: a small HTTP API on loopback, for the terminal, tests and people."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.contract.workspace import TOOLS_OF
from pod_host.dev.journal import Journal
from pod_host.dev.listening import base_url, error_answer, host_names, json_answer
from pod_host.dev.model_gate import ModelGate
from pod_host.dev.record import Record
from pod_host.dev.sessions import NorthRefusal, Sessions
from pod_host.dev.transcripts import Transcripts
from pod_host.dev.workspaces import Workspaces
from pod_host.errors import ContractViolation, RuntimeRefusal
from pod_host.limits import MIB

BODY_BYTES: Final = 64 * MIB
_STATUS_OF: Final = {"unavailable": 503, "not_found": 404, "invalid": 400, "limit_exceeded": 413}


class North:
    """Loopback only. A page in a browser may reach loopback too, so a foreign ``Host`` or ``Origin`` is refused."""

    def __init__(
        self,
        listener: socket.socket,
        record: Record,
        sessions: Sessions,
        transcripts: Transcripts,
        journal: Journal,
        models: ModelGate,
        workspaces: Workspaces,
        *,
        status: Callable[[], JsonObject],
        cancel: Callable[[str, str], None],
    ) -> None:
        self._listener = listener
        self.url = base_url(listener)
        self._record = record
        self._sessions = sessions
        self._transcripts = transcripts
        self._journal = journal
        self._models = models
        self._workspaces = workspaces
        self._status = status
        self._cancel = cancel
        self._hosts = host_names(listener)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._guard])
        session = "/v1/sessions/{session_id}"
        app.add_routes(
            [
                web.get("/v1/status", self._get_status),
                web.get("/v1/warnings", self._get_warnings),
                web.get("/v1/events", self._get_events),
                web.post("/v1/sessions", self._post_session),
                web.get("/v1/sessions", self._get_sessions),
                web.get(session, self._get_session),
                web.post(f"{session}/messages", self._post_message),
                web.post(f"{session}/cancel", self._post_cancel),
                web.get(f"{session}/events", self._get_events),
                web.post(f"{session}/interactions/{{interaction_id:.+}}", self._post_interaction),
                web.post(f"{session}/sandbox/{{what:exec|read|write}}", self._post_sandbox_call),
                web.get(f"{session}/transcript", self._get_transcript),
                web.get(f"{session}/calls/model", self._get_model_calls),
                web.get(f"{session}/calls/tool", self._get_tool_calls),
                web.post("/v1/sandbox/{what:report|sweep|remove}", self._post_sandbox),
            ]
        )
        # The handler's task ends when its client leaves: a command that nobody waits for is given up.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.headers.get("Host", "").lower() not in self._hosts:
            return error_answer(421, "host_rejected", "the Host header is not this API's")
        if origin is not None and origin.lower() not in {f"http://{name}" for name in self._hosts}:
            return error_answer(403, "origin_rejected", "requests of a web page are refused")
        try:
            return await handler(request)
        except NorthRefusal as refusal:
            return error_answer(refusal.status, refusal.code, str(refusal))
        except RuntimeRefusal as refusal:
            return error_answer(_STATUS_OF.get(refusal.code, 502), refusal.code, refusal.message)
        except web.HTTPException as fault:
            headers = {name: fault.headers[name] for name in ("Allow",) if name in fault.headers}
            return error_answer(
                fault.status, fault.reason.lower().replace(" ", "_"), fault.text or fault.reason, headers
            )

    # --- Sessions --------------------------------------------------------------------------------------------------------

    async def _post_session(self, request: web.Request) -> web.Response:
        await _members(request)
        return json_answer({"sessionId": self._sessions.open()}, 201)

    async def _get_sessions(self, request: web.Request) -> web.Response:
        return json_answer({"sessions": self._sessions.listed()})

    async def _get_session(self, request: web.Request) -> web.Response:
        return json_answer(self._sessions.view(_session_id(request)))

    async def _post_message(self, request: web.Request) -> web.Response:
        body = await _members(request, "input")
        message_id, turn_id = self._sessions.post(_session_id(request), body.get("input"))
        return json_answer({"messageId": message_id} | ({"turnId": turn_id} if turn_id else {}), 202)

    async def _post_cancel(self, request: web.Request) -> web.Response:
        body = await _members(request, "reason")
        reason = body.get("reason", "cancel")
        if reason not in ("cancel", "deadline"):
            raise NorthRefusal(400, "invalid_request", "reason: cancel or deadline is needed")
        self._cancel(_session_id(request), reason)
        return json_answer({}, 202)

    async def _post_interaction(self, request: web.Request) -> web.Response:
        body = await _members(request, "approved")
        approved = body.get("approved")
        if not isinstance(approved, bool):
            raise NorthRefusal(400, "invalid_request", "approved: true or false is needed")
        self._sessions.answer(_session_id(request), request.match_info["interaction_id"], approved)
        return json_answer({}, 202)

    async def _get_transcript(self, request: web.Request) -> web.Response:
        session_id = self._sessions.row(_session_id(request))["id"]
        return json_answer(
            {"cursor": self._transcripts.cursor(session_id), "entries": self._transcripts.entries(session_id)}
        )

    async def _get_model_calls(self, request: web.Request) -> web.Response:
        return json_answer({"calls": self._models.usage_rows(self._sessions.row(_session_id(request))["id"])})

    async def _get_tool_calls(self, request: web.Request) -> web.Response:
        return json_answer({"calls": self._journal.tool_rows(self._sessions.row(_session_id(request))["id"])})

    # --- The sandbox -----------------------------------------------------------------------------------------------------

    async def _post_sandbox_call(self, request: web.Request) -> web.Response:
        method = f"workspace.{request.match_info['what']}"
        body = await _members(request, "tool", "input")
        tool, arguments = body.get("tool"), body.get("input")
        if tool not in TOOLS_OF[method] or not isinstance(arguments, dict):
            tools = ", ".join(TOOLS_OF[method])
            raise NorthRefusal(400, "invalid_request", f"{method} takes {{tool, input}}; tool is one of {tools}")
        return json_answer(await self._workspaces.call(_session_id(request), method, str(tool), arguments))

    async def _post_sandbox(self, request: web.Request) -> web.Response:
        method = f"workspace.{request.match_info['what']}"
        members = {"workspace.sweep": ("now",), "workspace.remove": ("keys", "sandboxIds", "all")}.get(method, ())
        return json_answer(await self._workspaces.whole(method, await _members(request, *members)))

    # --- The record ------------------------------------------------------------------------------------------------------

    async def _get_status(self, request: web.Request) -> web.Response:
        return json_answer(self._status())

    async def _get_warnings(self, request: web.Request) -> web.Response:
        return json_answer({"warnings": self._record.warnings()})

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        session_id = request.match_info.get("session_id")
        if session_id is not None:
            self._sessions.row(session_id)
        after = request.query.get("after", "0")
        if not after.isascii() or not after.isdigit():
            raise NorthRefusal(400, "invalid_request", "after: a seq is needed")
        events = self._record.follow(session_id, int(after), follow=request.query.get("follow") == "1")
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await answer.prepare(request)
        await _write_lines(answer, events)
        return answer


async def _write_lines(answer: web.StreamResponse, events: AsyncIterator[JsonObject]) -> None:
    try:
        async for event in events:
            await answer.write(encode(event) + b"\n")
        await answer.write_eof()
    except ConnectionError:
        return  # the reader left


def _session_id(request: web.Request) -> str:
    return request.match_info["session_id"]


async def _members(request: web.Request, *names: str) -> JsonObject:
    """The body: an object with these members at most; none at all is an empty one. Raises NorthRefusal."""
    raw = await request.read()
    try:
        body: Any = decode(raw) if raw.strip() else {}
    except ContractViolation as fault:
        raise NorthRefusal(400, "invalid_request", str(fault)) from None
    if not isinstance(body, dict):
        raise NorthRefusal(400, "invalid_request", "an object is needed")
    unknown: Json = sorted(set(body) - set(names))
    if unknown:
        raise NorthRefusal(400, "invalid_request", f"{unknown[0]}: no such member")
    return body
