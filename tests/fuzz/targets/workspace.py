# ruff: noqa: PT017 - what is said of a refusal is a property here
"""``workspace.*`` requests: refused as ``invalid``, or one tool call with checked input and an answer that can cross."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pod_host.contract.base import Json, JsonObject, Sent
from pod_host.contract.encoding import decode, encode
from pod_host.contract.methods import HARNESS_ASKS
from pod_host.contract.workspace import TOOLS_OF, WORKSPACE_METHODS
from pod_host.errors import ContractViolation, RuntimeRefusal
from pod_host.host.workspace import Workspaces
from pod_host.sandbox import Completed, Outcome, ToolCall, command_environment, frames
from pod_host.sandbox.requests import encode_request
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source, pick

_INPUTS: JsonObject = {
    "bash": {"command": "ls", "timeout": 5},
    "read": {"path": "a", "offset": 1, "limit": 10},
    "grep": {"pattern": "x", "path": "a", "glob": "*.py", "ignore_case": True, "max_results": 5},
    "glob": {"pattern": "**/*", "path": "a"},
    "write": {"path": "a", "content": "x"},
    "edit": {"path": "a", "old_string": "x", "new_string": "y", "replace_all": True},
}


class Sandbox:
    """Takes a call as the worker's client does, up to the socket."""

    def submit(self, request: ToolCall) -> Sandbox:
        header, body = encode_request(request)
        frames.encode({**header, "id": 1}, body)
        self._tool = request.tool
        return self

    async def outcome(self) -> Outcome:
        return Completed({"exitCode": 0, "stdout": "", "stderr": ""} if self._tool == "bash" else {})

    def abort(self) -> None:
        pass


def run(source: Source) -> None:
    method = pick(source, [name for name in WORKSPACE_METHODS if name in TOOLS_OF])
    tool = pick(source, TOOLS_OF[method])
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
    with loop.no_bugs():
        loop.run(_served(method, params))


async def _served(method: str, params: Json) -> None:
    sandbox: Any = Sandbox()

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

    async def ask(method: str, claim: Sent) -> object:
        HARNESS_ASKS[method].read_params(decode(encode(claim.wire())))
        return {}

    try:
        encode(await workspaces.serve(ask, method, params))
    except RuntimeRefusal as refusal:
        assert refusal.code == "invalid", refusal
