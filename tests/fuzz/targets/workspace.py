"""``workspace.*`` requests, and a turn's own calls: refused, or one call with checked input and an answer that can cross."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pod_host.client import OnAnswer
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.contract.methods import HARNESS_ASKS
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import RunGrant
from pod_host.contract.workspace import TOOLS_OF, WORKSPACE_METHODS
from pod_host.errors import ContractViolation, PodHostError, RuntimeRefusal, SandboxError, WorkerLost
from pod_host.host.workspace import Workspaces, outcome_on_the_wire
from pod_host.sandbox import (
    Completed,
    Failed,
    Outcome,
    Report,
    Request,
    SandboxProcess,
    ToolCall,
    command_environment,
    frames,
)
from pod_host.sandbox.requests import encode_request
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source, pick
from tests.fuzz.targets import turn_start

_INPUTS: JsonObject = {
    "bash": {"command": "ls", "timeout": 5},
    "read": {"path": "a", "offset": 1, "limit": 10},
    "grep": {"pattern": "x", "path": "a", "glob": "*.py", "ignore_case": True, "max_results": 5},
    "glob": {"pattern": "**/*", "path": "a"},
    "write": {"path": "a", "content": "x"},
    "edit": {"path": "a", "old_string": "x", "new_string": "y", "replace_all": True},
}


class Sandbox:
    """Takes a call as the worker's client does, up to the socket, and answers as a worker may."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def ask(self, request: Request) -> Outcome:
        return await self.submit(request).outcome()

    def submit(self, request: Request) -> Call:
        header, body = encode_request(request)
        frames.encode({**header, "id": 1}, body)
        if self._source.below(8) == 1:
            raise SandboxError("The sandbox is stopped.")
        return Call(self._source, request.tool if isinstance(request, ToolCall) else "")

    def look(self, told: Callable[[Report], None]) -> None:
        living = [
            SandboxProcess(number, hostile.text(self._source), "ses_1", (8080,) * self._source.below(3))
            for number in range(self._source.below(4))
        ]
        told(Report(self._source.below(4) != 1, pid=1, processes=tuple(living), more=self._source.below(3)))


class Call:
    """Ends in the next turn of the event loop. How is chosen before: a source that has no more to choose from raises."""

    def __init__(self, source: Source, tool: str) -> None:
        self._then: list[Callable[[Outcome | SandboxError], None]] = []
        self._ended: asyncio.Future[Outcome | SandboxError] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._end, self._choose(source, tool))

    def then(self, told: Callable[[Outcome | SandboxError], None]) -> None:
        self._then.append(told)

    async def outcome(self) -> Outcome:
        end = await self._ended
        if isinstance(end, SandboxError):
            raise end
        return end

    def abort(self) -> None:
        pass

    def _end(self, end: Outcome | SandboxError) -> None:
        for told in self._then:
            told(end)
        self._ended.set_result(end)

    def _choose(self, source: Source, tool: str) -> Outcome | SandboxError:
        match source.below(8):
            case 1:
                return Failed("sandbox.not_found", hostile.text(source))
            case 2:
                return WorkerLost("it died")
        if tool == "bash":
            code, timed_out = pick(source, ((0, False), (130, False), (124, True)))
            return Completed({"exitCode": code, "stdout": "", "stderr": "", "timedOut": timed_out})
        return Completed({})


class Served:
    """A request of the Runtime, as the channel hands it over."""

    def __init__(self, method: str, params: Json) -> None:
        self.method = method
        self.params = params
        self.stop: Callable[[], object] = lambda: None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, result: JsonObject) -> None:
        encode(result)
        self.over.set_result(None)

    def fail(self, fault: Exception) -> None:
        if isinstance(fault, RuntimeRefusal):
            assert fault.code in ("invalid", "unavailable"), fault
        else:
            assert isinstance(fault, SandboxError)
        self.over.set_result(None)


def run(source: Source) -> None:
    method = pick(
        source, (*(name for name in WORKSPACE_METHODS if name in TOOLS_OF), *WORKSPACE_METHODS, "workspace.odd")
    )
    tool = pick(source, TOOLS_OF.get(method, ("bash",)))
    call = {
        "tool": tool,
        "input": _INPUTS[tool],
        "session": {"ownerId": "ses_1", "activeTurnId": "turn_1", "environment": {"A": "b", "GIT_CONFIG_COUNT": "1"}},
        "spec": {"image": "i", "network": "n", "environment": {"C": "d"}},
        "environment": {"E": "f"},
    }
    try:
        params = decode(hostile.json_text(source, {"call": call} if source.below(2) else call))
    except ContractViolation:
        return
    start = turn_start.read(source) if source.below(4) == 1 else None
    with loop.no_bugs():
        loop.run(_served(source, method, params, start))


async def _served(source: Source, method: str, params: Json, start: TurnStart | None) -> None:
    sandbox: Any = Sandbox(source)

    def environment(declared: Mapping[str, str], traceparent: str | None) -> Mapping[str, str]:
        return command_environment(
            base={"PATH": "/bin"},
            home=Path("/home"),
            session=declared,
            proxy="http://host:t%2Fk@proxy.test:8080",
            trust_bundle=Path("/ca.pem"),
            traceparent=traceparent,
        )

    workspaces = Workspaces(sandbox, environment, Path("/skills"))
    refuses = source.below(4) == 1

    def post(method: str, claim: JsonObject, on_answer: OnAnswer) -> None:
        HARNESS_ASKS[method].read_params(decode(encode(claim)))
        on_answer(RuntimeRefusal("invalid", "no such session") if refuses else {})

    if start is not None:
        await _of_a_turn(source, workspaces, post, start, params)
        return
    for _ in range(1 + source.below(2)):
        served: Any = Served(method, params)
        try:
            workspaces.serve(post, served)
        except PodHostError as fault:
            served.fail(fault)
        await served.over


async def _of_a_turn(source: Source, workspaces: Workspaces, post: Any, start: TurnStart, tool_input: Json) -> None:
    """A turn's own calls: the same sandbox by another door."""
    run: Any = _Run(post)
    session = workspaces.of_run(run, start)
    if session is None:
        return
    try:
        running = session.start(pick(source, sorted(_INPUTS)), tool_input, traceparent=None)
        if source.below(4) == 1:
            workspaces.close()
            running.abort()
        encode(outcome_on_the_wire(await running.outcome()))
        await session.read_bytes(hostile.text(source), 0, 10)
        await session.list_folder(hostile.text(source), 10)
        await session.mount_skill("s", {"SKILL.md": b"text"})
        assert session.has_skill("s")
    except SandboxError:
        pass


class _Run:
    grant = RunGrant(
        run_id="run_1",
        session_id="ses_1",
        turn_id="turn_1",
        epoch=1,
        token="token",
        token_expires_at=datetime(2030, 1, 1, tzinfo=UTC),
    )

    def __init__(self, post: Any) -> None:
        self.post = post
