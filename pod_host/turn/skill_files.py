"""A skill's files: read from the Runtime in ranges, verified, kept by their hash, mounted in the sandbox (v5, section 3)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from typing import Final

from pod_host import limits
from pod_host.contract.open_points import read_definition_file
from pod_host.contract.work import DefinitionFileParams
from pod_host.errors import ContractViolation, PodHostError, SandboxError, WorkerLost
from pod_host.turn.endings import TurnFailure
from pod_host.turn.log import tell
from pod_host.turn.ports import SandboxPort
from pod_host.turn.requests import Requests
from pod_host.turn.skills import Skill, Skills
from pod_host.turn.stop import Stop

_PASSING: Final = frozenset({"unavailable", "internal"})  # refusals that may not come again


class SkillUnavailable(PodHostError):
    """A skill's file cannot be had, or is not what its hash says. The text is for the model and the log. ``passing``: the
    store is out, and may be back at the next call."""

    code = "skill.unavailable"

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class FileCache:
    """Bytes by a name that tells their version, shared by a host's turns; bounded, the least recently used go first."""

    def __init__(self, most_bytes: int = limits.SKILL_CACHE_BYTES) -> None:
        self._most = most_bytes
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0

    def get(self, name: str) -> bytes | None:
        content = self._held.get(name)
        if content is not None:
            self._held.move_to_end(name)
        return content

    def put(self, name: str, content: bytes) -> None:
        if name in self._held or len(content) > self._most:
            return
        self._held[name] = content
        self.size += len(content)
        while self.size > self._most:
            self.size -= len(self._held.popitem(last=False)[1])


class SkillFiles:
    """Reads for one run, one file at a time: they may be large. ``chunk_bytes``: the most of one range, as the Runtime
    limits it."""

    def __init__(self, requests: Requests, cache: FileCache, chunk_bytes: int) -> None:
        self._requests = requests
        self._cache = cache
        self._range = min(chunk_bytes, limits.SKILL_RANGE_BYTES)
        self._one_at_a_time = asyncio.Lock()

    async def read(self, skill: Skill, path: str) -> bytes:
        """Raises SkillUnavailable, and Stopped."""
        name = skill.files[path]
        async with self._one_at_a_time:
            content = self._cache.get(name)
            if content is None:
                try:
                    content = await self._fetch(name)
                except (TurnFailure, ContractViolation, SkillUnavailable) as fault:
                    text = f"{path} of the skill {skill.name} cannot be had: {fault}"
                    raise SkillUnavailable(text, passing=fault.code in _PASSING) from fault
                self._cache.put(name, content)
        return content

    async def all(self, skill: Skill) -> dict[str, bytes]:
        """Raises SkillUnavailable, and Stopped."""
        files: dict[str, bytes] = {}
        size = 0
        for path in sorted(skill.files):
            files[path] = await self.read(skill, path)
            size += len(files[path])
            if size > limits.SKILL_BYTES:
                raise SkillUnavailable(f"the skill {skill.name} holds more than {limits.SKILL_BYTES} bytes")
        return files

    async def _fetch(self, name: str) -> bytes:
        """Ranges until the bytes are those of the hash: it alone says when a file is whole, whatever an answer says."""
        content = bytearray()
        digest = hashlib.sha256()
        while True:
            params = DefinitionFileParams(
                run_id=self._requests.run_id, sha256=name, offset=len(content), length=self._range
            )
            part = read_definition_file(await self._requests.ask("definition.file", params))
            content += part.data
            digest.update(part.data)
            if f"sha256:{digest.hexdigest()}" == name:
                return bytes(content)
            if len(content) > limits.SKILL_FILE_BYTES:
                raise SkillUnavailable(f"it is larger than {limits.SKILL_FILE_BYTES} bytes")
            if part.eof or not part.data or (part.size is not None and len(content) >= part.size):
                raise SkillUnavailable("its bytes do not match its hash")


class SkillMounts:
    """Puts the turn's skills into the sandbox, each once in the pod's life. One that cannot be mounted is not there, which
    `fault` and the log say; the turn goes on. ``one_at_a_time``: of all that mount in the turn."""

    def __init__(
        self, skills: Skills, files: SkillFiles, sandbox: SandboxPort | None, stop: Stop, one_at_a_time: asyncio.Lock
    ) -> None:
        self._skills = skills
        self._files = files
        self._sandbox = sandbox
        self._stop = stop
        self._faults: dict[str, str] = {}
        self._for_good: set[str] = set()  # those that are not tried again in this turn
        self._one_at_a_time = one_at_a_time

    async def mount_all(self) -> None:
        """Before a sandbox call. Raises Stopped alone."""
        for skill in self._skills:
            await self.mount(skill)

    async def mount(self, skill: Skill) -> str | None:
        """The skill's folder once it is there; None without a sandbox, or where it cannot be. Raises Stopped alone."""
        sandbox = self._sandbox
        if sandbox is None:
            return None
        async with self._one_at_a_time:
            if skill.name in self._for_good:
                return None
            if not sandbox.has_skill(skill.folder):
                try:
                    files = await self._files.all(skill)
                    await self._stop.race(lambda: sandbox.mount_skill(skill.folder, files))
                except (SkillUnavailable, SandboxError) as fault:
                    self._faults[skill.name] = str(fault)
                    passing = fault.passing if isinstance(fault, SkillUnavailable) else isinstance(fault, WorkerLost)
                    if not passing:  # else the next call tries again: another worker comes, and a store is back
                        self._for_good.add(skill.name)
                    tell(logging.ERROR, "skill.not_mounted", skill=skill.name, folder=skill.folder, why=str(fault))
                    return None
            self._faults.pop(skill.name, None)
            return self._skills.path(skill)

    def fault(self, skill: Skill) -> str | None:
        """Why the skill is not in the sandbox, when mounting it failed."""
        return self._faults.get(skill.name)
