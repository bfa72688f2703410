"""A sandbox in memory: it runs nothing, and can hold a call until it is aborted or let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pod_host.contract.base import JsonObject
from pod_host.errors import SandboxError
from pod_host.sandbox.outcomes import Completed, Failed, Outcome
from tests.turn.double import World

Work = Callable[[str, JsonObject], Outcome]


def echo(tool: str, arguments: JsonObject) -> Outcome:
    return Completed({"tool": tool, "input": arguments})


@dataclass
class Sandbox:
    """``work`` gives a call's outcome, or raises; ``held``: tools whose calls wait for `release` or an abort.
    ``unmountable``: why no skill can be mounted. ``skills``: those that are, by folder; they live as long as the pod."""

    work: Work = echo
    world: World | None = None
    held: set[str] = field(default_factory=set)
    started: list[tuple[str, JsonObject]] = field(default_factory=list)
    traceparents: list[str | None] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    stubborn: bool = False  # an abort changes nothing
    released: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)  # a held call is being awaited

    skills_dir: str = "/skills"
    plain_http: bool = False
    unmountable: str | None = None
    skills: dict[str, dict[str, bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)  # by their path in the workspace
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    after_read: Callable[[str, int], None] | None = None

    async def read_bytes(self, path: str, offset: int, length: int) -> Outcome:
        self.reads.append((path, offset, length))
        if self.world is not None:
            await self.world.point("bytes read")
        path = path.removeprefix("/workspace/")
        if path not in self.files:
            return Failed("sandbox.not_found", f"No file at /workspace/{path}")
        data = self.files[path]
        outcome = Completed({"bytes": data[offset : offset + length], "size": len(data)})
        if self.after_read is not None:
            self.after_read(path, offset)
        return outcome

    async def list_folder(self, path: str, most: int) -> Outcome:
        if self.world is not None:
            await self.world.point("folder listed")
        below = f"{path}/"
        found = [
            [name.removeprefix(below), len(data)] for name, data in sorted(self.files.items()) if name.startswith(below)
        ]
        return Completed({"bytes": json.dumps(found[:most]).encode(), "more": len(found) > most})

    def has_skill(self, folder: str) -> bool:
        return folder in self.skills

    async def mount_skill(self, folder: str, files: Mapping[str, bytes]) -> None:
        if self.world is not None:
            await self.world.point("skill mounted")
        if self.unmountable is not None:
            raise SandboxError(self.unmountable)
        assert folder not in self.skills
        self.skills[folder] = dict(files)

    def start(self, tool: str, input: JsonObject, *, traceparent: str | None) -> _Call:
        self.started.append((tool, input))
        self.traceparents.append(traceparent)
        return _Call(self, tool, input)


class _Call:
    def __init__(self, sandbox: Sandbox, tool: str, arguments: JsonObject) -> None:
        self._sandbox = sandbox
        self._tool = tool
        self._arguments = arguments
        self._aborted = asyncio.Event()

    async def outcome(self) -> Outcome:
        sandbox = self._sandbox
        if sandbox.world is not None:
            await sandbox.world.point("sandbox started")
        if self._tool in sandbox.held:
            sandbox.waiting.set()
            over = {asyncio.ensure_future(event.wait()) for event in (self._aborted, sandbox.released)}
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            for task in over:
                task.cancel()
        if self._aborted.is_set():
            return Completed({"exitCode": 130, "stdout": "so far", "stderr": "Command was aborted and killed."})
        outcome = sandbox.work(self._tool, self._arguments)
        if sandbox.world is not None:
            await sandbox.world.point("sandbox ended")
        return outcome

    def abort(self) -> None:
        self._sandbox.aborted.append(self._tool)
        if not self._sandbox.stubborn:
            self._aborted.set()
