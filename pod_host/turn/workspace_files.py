"""Files of the workspace as bytes to store: read by the sandbox's worker, range by range. The host opens none itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

from pod_host import limits
from pod_host.contract.base import Json
from pod_host.errors import PodHostError
from pod_host.sandbox.outcomes import Failed, Outcome
from pod_host.turn.artifacts import Content, ContentChanged
from pod_host.turn.ports import SandboxPort
from pod_host.turn.stop import Stop


class FileRefused(PodHostError):
    """The sandbox does not read it. ``code``: the sandbox's own, such as ``sandbox.not_found``."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.code = failed.code
        self.message = failed.message


@dataclass(frozen=True, slots=True)
class Listing:
    """Paths below a folder and sizes, by path. ``closed``: paths that may not be looked at; a directory's ends in a slash.
    ``more``: there are others."""

    files: list[tuple[str, int]]
    closed: list[str]
    more: bool


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    """Each read comes after the session's earlier writers. Raises SandboxError and Stopped, beside what is said."""

    sandbox: SandboxPort
    stop: Stop

    async def open(self, path: str) -> Content:
        """A file as it is now: its size, and its first range, which is not read again. Raises FileRefused."""
        first = await self._bytes(path, 0, limits.ARTIFACT_RANGE_BYTES)
        head: bytes = first["bytes"]

        async def read(offset: int, length: int) -> bytes:
            if offset + length <= len(head):
                return head[offset : offset + length]
            return await self._part(path, offset, length)

        return Content(first["size"], read)

    def content(self, path: str, size: int) -> Content:
        """The first ``size`` bytes of a file, read as they are asked for: raises ContentChanged where it has fewer, or is
        there no more, and FileRefused where it may not be read."""

        async def read(offset: int, length: int) -> bytes:
            try:
                data = await self._part(path, offset, length)
            except FileRefused as refusal:
                if refusal.code != "sandbox.not_found":
                    raise
                raise ContentChanged("it went while it was read") from refusal
            if len(data) < length:
                raise ContentChanged("it became shorter while it was read")
            return data

        return Content(size, read)

    async def list(self, path: str, most: int) -> Listing:
        """Raises FileRefused."""
        output = _output(await self.stop.race(partial(self.sandbox.list_folder, path, most)))
        listed = json.loads(output["bytes"])
        files = [(name, size) for name, size in listed if size is not None]
        return Listing(files, [name for name, size in listed if size is None], output["more"])

    async def _part(self, path: str, offset: int, length: int) -> bytes:
        data: bytes = (await self._bytes(path, offset, length))["bytes"]
        return data

    async def _bytes(self, path: str, offset: int, length: int) -> Json:
        return _output(await self.stop.race(partial(self.sandbox.read_bytes, path, offset, length)))


def _output(outcome: Outcome) -> Json:
    if isinstance(outcome, Failed):
        raise FileRefused(outcome)
    return outcome.output
