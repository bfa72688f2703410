"""The outputs folder: what lies in ``outputs`` of the workspace when a turn is completed, as one version of the session's
folder artifact (Harness API v5, section 4b). It never fails a turn: what could not be stored is claimed, and logged; one
file that cannot be is left out, and does not cost the others.

Its key is the turn's, so a turn that completes again, on another host, finds it stored.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pod_host import limits
from pod_host.contract.artifacts import ArtifactWriteResult
from pod_host.contract.base import JsonObject
from pod_host.contract.work import EventParams
from pod_host.errors import PodHostError, WorkerLost
from pod_host.turn.artifacts import ArtifactRefused, Artifacts, Content, ContentChanged, FolderFile
from pod_host.turn.endings import Stopped, TurnThrown
from pod_host.turn.identity import Identities
from pod_host.turn.log import tell
from pod_host.turn.media_types import media_type_of
from pod_host.turn.requests import Requests
from pod_host.turn.text import readable
from pod_host.turn.workspace_files import FileRefused, WorkspaceFiles

NAME: Final = "outputs"
_MESSAGE_CHARACTERS: Final = 500
_PATH_CHARACTERS: Final = 512
_NAMED_CHARACTERS: Final = 200  # of a path, in a message
_NO_PATH: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # what a file of an artifact cannot have in its path
_DOUBTFUL: Final = "\\"  # the contract does not forbid it, a store may

Event = Literal["artifact.export.skipped", "artifact.export.failed"]


class Skipped(PodHostError):
    """The folder is not stored as it is. ``reason``: ``too_many_files``, ``file_too_large``, ``too_large``, the total that
    core named, or ``files_left_out`` for one that was stored without some. ``limit``: in files or bytes. ``path``: of the
    file at fault."""

    code = "artifact.skipped"

    def __init__(self, reason: str, message: str, *, limit: int | None = None, path: str | None = None) -> None:
        super().__init__(message)
        self.payload: JsonObject = {"reason": reason, "message": readable(message)[:_MESSAGE_CHARACTERS]}
        if limit is not None:
            self.payload["limit"] = limit
        if path is not None:
            self.payload["path"] = path


class ExportFailed(PodHostError):
    """The folder cannot be stored as it is."""

    code = "artifact.export_failed"


class NamesRefused(PodHostError):
    """The store takes no name with a backslash."""

    code = "artifact.names_refused"


class FileFault(PodHostError):
    """One file stands in the way of the others: the upload must begin anew."""

    code = "artifact.file_fault"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


@dataclass(frozen=True, slots=True)
class OutputsFolder:
    """``folder_entries``: the most files of one version. ``left``: what is left out of it, by path, and why."""

    ids: Identities
    requests: Requests
    artifacts: Artifacts
    files: WorkspaceFiles
    folder_entries: int
    left: dict[str, str] = field(default_factory=dict)

    async def save(self) -> None:
        """Before ``turn.completed``: the run ends with that. Nothing where the folder is empty or missing. Raises Stopped
        alone."""
        try:
            await self._save()
        except Stopped:
            raise
        except Skipped as skipped:
            await self._claim("artifact.export.skipped", skipped.payload)
        except PodHostError as fault:
            if isinstance(fault, ArtifactRefused) and fault.code == "limit_exceeded":
                await self._claim("artifact.export.skipped", Skipped("too_large", fault.message).payload)
                return
            await self._claim("artifact.export.failed", {"message": readable(str(fault))[:_MESSAGE_CHARACTERS]})

    async def _save(self) -> None:
        in_the_way: set[str] = set()  # files that were before: once they may have been changing
        doubtful = True
        for attempt in range(1, limits.EXPORT_ATTEMPTS + 1):
            try:
                await self._once(doubtful)
                break
            except NamesRefused:
                doubtful = False
            except FileFault as fault:
                if attempt == limits.EXPORT_ATTEMPTS:
                    raise
                if fault.path in in_the_way:
                    self.left[fault.path] = fault.why
                in_the_way.add(fault.path)
            except (ArtifactRefused, WorkerLost):
                if attempt == limits.EXPORT_ATTEMPTS:
                    raise
        if self.left:
            await self._claim("artifact.export.skipped", self._left_out(), told="outputs.left_out")

    def _left_out(self) -> JsonObject:
        """What is claimed of a folder that was stored without some of its files."""
        (first, why), others = next(iter(self.left.items())), len(self.left) - 1
        beside = f", and {others} more" if others else ""
        text = f"Left out: {_shown(first)[:_NAMED_CHARACTERS]} ({why}){beside}. The other files are saved."
        return Skipped("files_left_out", text, path=_shown(first)).payload

    async def _once(self, doubtful: bool) -> None:
        """``doubtful``: names that a store may refuse are tried."""
        listing = await self.files.list(NAME, self.folder_entries)
        if not listing.files and not listing.closed:
            return
        self.left.update(dict.fromkeys(listing.closed, "it may not be read"))
        names = (path for path, _ in listing.files if not _can_be_named(path, doubtful))
        self.left.update(dict.fromkeys(names, "no artifact can have its name"))
        files = [(path, size) for path, size in listing.files if path not in self.left]
        if not files:
            raise ExportFailed(self._nothing())
        opened = await self.artifacts.begin_folder(NAME, f"{NAME}:{self.ids.turn_id}")
        if opened.status == "written":
            return
        async with self.artifacts.ending(opened) as upload_id:
            if listing.more:
                text = f"{NAME} holds more than {self.folder_entries} files"
                raise Skipped("too_many_files", text, limit=self.folder_entries)
            _check(files, opened)
            for path, size in files:
                await self._put(upload_id, path, size)
            if all(path in self.left for path, _ in files):
                raise ExportFailed(self._nothing())
            ended = await self.artifacts.commit(upload_id)
        if ended.status == "refused":
            raise Skipped(ended.reason or "too_large", ended.message or "It was refused.", limit=ended.limit)

    def _nothing(self) -> str:
        path, why = next(iter(self.left.items()))
        return f"No file of {NAME} can be stored: {_shown(path)[:_NAMED_CHARACTERS]} ({why})"

    async def _put(self, upload_id: str, path: str, size: int) -> None:
        step = self.artifacts.range_bytes
        content = self.files.content(f"{NAME}/{path}", size)
        digest = hashlib.sha256()
        held = b""
        try:
            for offset in range(0, size, step):
                held = await content.read(offset, min(step, size - offset))
                digest.update(held)
        except FileRefused as refusal:  # nothing of it was sent
            self.left[path] = refusal.message
            return
        except ContentChanged as fault:
            raise FileFault(path, str(fault)) from fault
        sha256 = digest.hexdigest()
        # A file of one range goes as the very bytes that were hashed; a longer one is read again.
        content = Content.of(held) if size <= step else _verified(content, sha256)
        try:
            await self.artifacts.put_file(upload_id, FolderFile(path, sha256, media_type_of(path), content))
        except (ContentChanged, FileRefused) as fault:
            raise FileFault(path, str(fault)) from fault
        except ArtifactRefused as refusal:
            if refusal.code == "limit_exceeded":
                raise Skipped("too_large", refusal.message, path=path) from refusal
            if refusal.code == "invalid" and _DOUBTFUL in path:
                raise NamesRefused(refusal.message) from refusal
            if refusal.code == "invalid":
                raise FileFault(path, refusal.message) from refusal
            raise ArtifactRefused(refusal.code, f"{path}: {refusal.message}") from refusal

    async def _claim(self, event: Event, payload: JsonObject, *, told: str = "outputs.not_saved") -> None:
        """Best effort: the log says it too, as the event ``told``."""
        tell(logging.WARNING, told, claim=event, **payload)
        params = EventParams(
            run_id=self.requests.run_id,
            session_id=self.ids.session_id,
            turn_id=self.ids.turn_id,
            type=event,
            payload={"name": NAME, **payload},
        )
        try:
            await self.requests.ask("event", params)
        except TurnThrown as refusal:
            tell(logging.WARNING, "event.refused", claim=event, code=refusal.code, why=refusal.message)


def _verified(content: Content, sha256: str) -> Content:
    """``content``, whose last range is given only where all of it is what was hashed: other bytes would end the upload."""
    digest = hashlib.sha256()
    seen = 0

    async def read(offset: int, length: int) -> bytes:
        nonlocal seen
        data = await content.read(offset, length)
        digest.update(data[max(seen - offset, 0) :])  # a range may be asked for again
        seen = max(seen, offset + len(data))
        if seen == content.size and digest.hexdigest() != sha256:
            raise ContentChanged("it changed while it was read")
        return data

    return Content(content.size, read)


def _shown(path: str) -> str:
    return readable(path)[:_PATH_CHARACTERS]


def _can_be_named(path: str, doubtful: bool) -> bool:
    return not _NO_PATH.search(path) and len(path) <= _PATH_CHARACTERS and (doubtful or _DOUBTFUL not in path)


def _check(files: Sequence[tuple[str, int]], opened: ArtifactWriteResult) -> None:
    """Raises Skipped for what the upload that was opened cannot hold, before a byte of it is sent."""
    for path, size in files:
        if opened.max_file_bytes is not None and size > opened.max_file_bytes:
            text = f"{path} holds {size} bytes; a file may hold {opened.max_file_bytes}"
            raise Skipped("file_too_large", text, limit=opened.max_file_bytes, path=path)
    total = sum(size for _, size in files)
    if opened.max_bytes is not None and total > opened.max_bytes:
        text = f"The files of {NAME} hold {total} bytes; together they may hold {opened.max_bytes}"
        raise Skipped("too_large", text, limit=opened.max_bytes)
