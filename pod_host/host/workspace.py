"""The sandbox as the Runtime sees it: tool calls of a session, and ``workspace.*`` requests (Harness API v5, section 10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pod_host.client import Run, Served
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.open_points import read_workspace_call
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import EventKind, event_params
from pod_host.contract.workspace import TOOLS_OF, WorkspaceCall
from pod_host.errors import ContractViolation, InvalidToolInput, RuntimeRefusal, SandboxError
from pod_host.host.claims import Claims, Post, exec_payload, state_payload
from pod_host.host.log import get_log
from pod_host.sandbox import (
    Completed,
    Failed,
    ListFolder,
    MountSkill,
    Outcome,
    Pending,
    ReadBytes,
    Report,
    Request,
    Sandbox,
    SandboxProcess,
    ToolCall,
)
from pod_host.sandbox.tools.inputs import parse_input

INVALID_INPUT = "tool.invalid-input"

log = get_log()


class RunningCall(Protocol):
    """`turn.SandboxCall`: `sandbox.Pending`, or a call that was refused before it got there. It goes on whoever waits for
    it, until it ends or is aborted."""

    def then(self, told: Callable[[Outcome | SandboxError], None]) -> None: ...

    async def outcome(self) -> Outcome:
        """Raises SandboxError when the call could not run, WorkerLost when what it did is unknown."""

    def abort(self) -> None: ...


Environment = Callable[[Mapping[str, str], str | None], Mapping[str, str]]
"""A command's whole environment, from what the session declares and the call's traceparent."""


class Workspaces:
    """Every session's way into the one sandbox of the pod. ``plain_http``: whether commands reach http:// URLs too."""

    def __init__(
        self, sandbox: Sandbox, environment: Environment, skills_dir: Path, *, plain_http: bool = False
    ) -> None:
        self.skills_dir = str(skills_dir)
        self.plain_http = plain_http
        self.mounted: set[str] = set()  # folders of skills, in this host's life: they go with the pod
        self._sandbox = sandbox
        self._environment = environment
        self._claims = Claims()
        self._asked: set[RunningCall] = set()  # calls of ``workspace.*`` requests; those of turns are their turns' own
        self._closed = False
        self._opened: set[str] = set()  # owners whose sandbox was claimed as running in this host's life

    def of_run(self, run: Run, start: TurnStart) -> SessionWorkspace | None:
        """None: the session has no sandbox, so its turn is offered no sandbox tools."""
        if start.agent is None or start.agent.sandbox is None:
            return None
        routed = start.routing.sandbox
        grant = run.grant
        return SessionWorkspace(
            self,
            post=run.post,
            session=grant.session_id,
            owner_id=(routed.owner_id if routed else "") or grant.session_id,
            turn_id=grant.turn_id,
            run_id=grant.run_id,
            declared=routed.environment if routed else {},
            spec=(routed.spec if routed else None) or {},
        )

    def serve(self, post: Post, served: Served) -> None:
        """Begin one ``workspace.*`` request, or answer it. When the Runtime gives it up, its command is killed.

        Raises RuntimeRefusal ``invalid`` for what is no request, ``unavailable`` when the host ends; SandboxError when the
        sandbox is out of order."""
        method = served.method
        if method == "workspace.sweep":  # a pod stops nothing of its own: it is stopped as a whole
            served.answer({"workspaces": []})
        elif method == "workspace.remove":  # nor deletes anything: a reset is a new volume
            served.answer({})
        elif self._closed:
            raise RuntimeRefusal("unavailable", "The host is stopping")
        elif method == "workspace.report":
            self._sandbox.look(lambda report: served.answer(report_on_the_wire(report)))
        else:
            self._run(post, served, _read_call(method, served.params))

    def _run(self, post: Post, served: Served, call: WorkspaceCall) -> None:
        workspace = SessionWorkspace(
            self,
            post=post,
            session=call.owner_id,
            owner_id=call.owner_id,
            turn_id=call.turn_id,
            run_id=None,
            declared=call.environment,
            spec=call.spec,
        )
        running = workspace.start(call.tool, call.input, traceparent=None)
        log.debug("workspace.call", method=served.method, tool=call.tool, sessionId=call.owner_id)

        def ended(end: Outcome | SandboxError) -> None:
            """After the claim, which would be refused when it came later than the answer."""
            self._asked.discard(running)
            if isinstance(end, SandboxError):
                served.fail(end)
            else:
                served.answer(outcome_on_the_wire(end))

        self._asked.add(running)
        served.stop = running.abort
        running.then(ended)

    def close(self) -> None:
        """The host ends. Every call of a ``workspace.*`` request is ended, and answered with what it has until then; no other
        is taken: clients that go on asking would keep the host."""
        self._closed = True
        for running in self._asked:
            running.abort()

    # --- for SessionWorkspace ------------------------------------------------------------------------------------------

    def submit(self, session: str, tool: str, tool_input: JsonObject, environment: Mapping[str, str]) -> Pending:
        return self._sandbox.submit(ToolCall(session, tool, tool_input, environment))

    async def ask(self, request: Request) -> Outcome:
        return await self._sandbox.ask(request)

    async def mount(self, folder: str, files: Mapping[str, bytes]) -> None:
        outcome = await self.ask(MountSkill(folder, files))
        if isinstance(outcome, Failed):
            raise SandboxError(outcome.message)
        self.mounted.add(folder)

    def environment(self, declared: Mapping[str, str], traceparent: str | None) -> Mapping[str, str]:
        return self._environment(declared, traceparent)

    def claim(self, post: Post, claims: list[JsonObject]) -> None:
        self._claims.send(post, claims)

    def open(self, owner_id: str) -> bool:
        """Whether this is the first use of the owner's sandbox."""
        if not owner_id or owner_id in self._opened:
            return False
        self._opened.add(owner_id)
        return True


class SessionWorkspace:
    """The sandbox of one session, for one run or one request: `turn.SandboxPort`."""

    def __init__(
        self,
        workspaces: Workspaces,
        *,
        post: Post,
        session: str,
        owner_id: str,
        turn_id: str | None,
        run_id: str | None,
        declared: Mapping[str, str],
        spec: JsonObject,
    ) -> None:
        self._workspaces = workspaces
        self._post = post
        self._session = session
        self._owner_id = owner_id
        self._turn_id = turn_id
        self._run_id = run_id
        self._declared = declared
        self._spec = spec

    def start(self, tool: str, input: JsonObject, *, traceparent: str | None) -> RunningCall:
        """Hand one tool call to the worker. The environment is made for each call: the egress token changes."""
        if self._workspaces.open(self._owner_id):
            self._claim("sandbox.state", [state_payload("creating", self._spec), state_payload("running", self._spec)])
        try:
            checked = parse_input(tool, input).for_worker()
        except InvalidToolInput as fault:
            return _Refused(Failed(INVALID_INPUT, str(fault)))
        environment = self._workspaces.environment(self._declared, traceparent) if tool == "bash" else {}
        pending = self._workspaces.submit(self._session, tool, checked, environment)
        began = time.monotonic()

        def told(end: Outcome | SandboxError) -> None:
            if isinstance(end, SandboxError):
                log.error("worker.lost", reason=str(end))
                return
            took = round((time.monotonic() - began) * 1000)
            self._claim("sandbox.exec", [exec_payload(tool, input, end, took)])

        pending.then(told)
        return pending

    async def read_bytes(self, path: str, offset: int, length: int) -> Outcome:
        """Some bytes of a file, and its size. Raises SandboxError."""
        return await self._workspaces.ask(ReadBytes(self._session, path, offset, length))

    async def list_folder(self, path: str, most: int) -> Outcome:
        """The regular files below a directory. Raises SandboxError."""
        return await self._workspaces.ask(ListFolder(self._session, path, most))

    @property
    def skills_dir(self) -> str:
        """Where `mount_skill` puts folders."""
        return self._workspaces.skills_dir

    @property
    def plain_http(self) -> bool:
        """Whether commands reach http:// URLs too."""
        return self._workspaces.plain_http

    def has_skill(self, folder: str) -> bool:
        """Whether it was mounted in this host's life."""
        return folder in self._workspaces.mounted

    async def mount_skill(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Make the folder of these files, read-only, whole or not at all; one that is there stays as it is. Raises
        SandboxError."""
        await self._workspaces.mount(folder, files)

    def _claim(self, kind: EventKind, payloads: list[JsonObject]) -> None:
        if not self._owner_id:
            return
        self._workspaces.claim(
            self._post,
            [
                event_params(kind, payload, session_id=self._owner_id, turn_id=self._turn_id, run_id=self._run_id)
                for payload in payloads
            ],
        )


class _Refused:
    """A call that never reached the worker."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def then(self, told: Callable[[Outcome | SandboxError], None]) -> None:
        told(self._outcome)

    async def outcome(self) -> Outcome:
        return self._outcome

    def abort(self) -> None:
        """Nothing runs."""


def report_on_the_wire(report: Report) -> JsonObject:
    """A strict Runtime takes these members and no other: what lives in the pod is told as probes of its own."""
    probes = [_probe("local", report.alive)]
    probes += [_probe(f"process:{process.pid}", True, _in_words(process)) for process in report.processes]
    if report.more:
        probes.append(_probe("processes", True, f"{report.more} more"))
    return {
        "preference": "auto",
        "backend": "local",
        "isolation": "container",
        "reason": "the sandbox is this pod",
        "probes": probes,
        "defaultImage": "",
    }


def _probe(name: str, available: bool, reason: str | None = None) -> JsonObject:
    probe: JsonObject = {"name": name, "available": available, "isolation": "container"}
    return probe if reason is None else {**probe, "reason": reason}


def _in_words(process: SandboxProcess) -> str:
    ports = f"; listens on {', '.join(map(str, process.ports))}" if process.ports else ""
    return f"{process.command}{ports}"


def outcome_on_the_wire(outcome: Outcome) -> JsonObject:
    """The SandboxToolOutcome of a call."""
    if isinstance(outcome, Failed):
        return {"kind": "failed", "code": outcome.code, "message": outcome.message}
    assert isinstance(outcome, Completed)
    return {"kind": "completed", "output": outcome.output}


def _read_call(method: str, params: Json) -> WorkspaceCall:
    if method not in TOOLS_OF:
        raise RuntimeRefusal("invalid", f"Unknown {method} request")
    try:
        return read_workspace_call(method, params)
    except ContractViolation as fault:
        raise RuntimeRefusal("invalid", str(fault)) from None
