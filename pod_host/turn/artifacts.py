"""Artifacts of the run's session: read in ranges, written in chunks (Harness API v5, section 4b).

A range or chunk is at most ``limits.chunkBytes``, and small enough that its base64 holds nobody up. An answer that was lost
is asked for again by `Requests`: a repeated chunk is acknowledged, and not taken twice.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from pod_host import limits
from pod_host.contract.artifacts import (
    ArtifactMeta,
    ArtifactReadParams,
    ArtifactReadResult,
    ArtifactWriteResult,
    WriteAbort,
    WriteBegin,
    WriteChunk,
    WriteCommit,
    WriteFile,
)
from pod_host.contract.base import Json, Sent, first_fault
from pod_host.contract.open_points import artifact_hash_forms
from pod_host.errors import PodHostError
from pod_host.turn.endings import StopReason, TurnThrown
from pod_host.turn.requests import Requests

SentT = TypeVar("SentT", bound=Sent)
Source: TypeAlias = Callable[[int, int], Awaitable[bytes]]
"""Bytes from an offset, at most so many; fewer only where there are no more."""


class ArtifactRefused(PodHostError):
    """The Runtime does not read or store it. ``code``: ``not_found``, ``limit_exceeded``, ``invalid``, or ``unavailable``
    and ``internal`` when it came twice."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ContentChanged(PodHostError):
    """The bytes that are being stored are not those that were looked at first. The text says what became of "it"."""

    code = "artifact.changed"


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes to store: ``size`` of them, had range by range."""

    size: int
    read: Source

    @classmethod
    def of(cls, data: bytes) -> Content:
        async def read(offset: int, length: int) -> bytes:
            return data[offset : offset + length]

        return cls(len(data), read)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of an artifact. ``eof``: nothing is left after it."""

    meta: ArtifactMeta
    data: bytes
    eof: bool


@dataclass(frozen=True, slots=True)
class FolderFile:
    """``path``: below the folder, ``/``-separated. ``sha256``: 64 hexadecimal digits."""

    path: str
    sha256: str
    content_type: str
    content: Content


class Artifacts:
    """For one run. ``finishes``: stops under which a request still goes on for a moment."""

    def __init__(self, requests: Requests, chunk_bytes: int, finishes: frozenset[StopReason] = frozenset()) -> None:
        self._requests = requests
        self._finishes = finishes
        self.range_bytes = min(chunk_bytes, limits.ARTIFACT_RANGE_BYTES)

    async def read(self, artifact_id: str, version: Json = None, *, offset: int = 0, length: int = 0) -> Piece:
        """At most ``length`` bytes from ``offset``; the latest version where none is named. Raises ArtifactRefused."""
        named = {} if version is None else {"version": version}
        params = _params(
            ArtifactReadParams,
            run_id=self._requests.run_id,
            artifact_id=artifact_id,
            offset=offset,
            length=min(length, self.range_bytes),
            **named,
        )
        answer: ArtifactReadResult = await self._ask("artifact.read", params)
        try:
            data = base64.b64decode(answer.base64, validate=True)
        except ValueError:
            raise ArtifactRefused("internal", "the answer's bytes are no base64") from None
        return Piece(answer.artifact, data, answer.eof)

    async def read_all(self, artifact_id: str, version: Json, most: int, *, offset: int = 0) -> Piece:
        """``most`` bytes from ``offset``, in as many ranges as it takes, all of the version that the first one is of."""
        content = bytearray()
        while True:
            piece = await self.read(artifact_id, version, offset=offset + len(content), length=most - len(content))
            version = piece.meta.version
            content += piece.data
            if piece.eof or not piece.data or len(content) >= most:
                return Piece(piece.meta, bytes(content), piece.eof)

    async def write(
        self,
        content: Content,
        *,
        key: str,
        effect_id: str,
        name: str | None = None,
        artifact_id: str | None = None,
        content_type: str | None = None,
    ) -> ArtifactMeta:
        """Store a file: a new artifact of this ``name``, or a new version of ``artifact_id``. Under a ``key`` that was
        written before nothing is stored, and what was is given. Raises ArtifactRefused, and what ``content`` raises."""
        first = await content.read(0, min(content.size, self.range_bytes))
        whole = len(first) == content.size
        members = {"name": name, "artifact_id": artifact_id, "content_type": content_type}
        begin = _params(
            WriteBegin,
            run_id=self._requests.run_id,
            op="begin",
            key=key,
            size=content.size,
            effect_id=effect_id,
            **{member: value for member, value in members.items() if value is not None},
        )
        opened = await self._write(begin.model_copy(update={"base64": _text(first)}) if whole else begin)
        if opened.status != "written":
            try:
                async with self.ending(opened) as upload_id:
                    await self._send(upload_id, content, opened.received)
                    opened = await self.commit(upload_id)
            except ArtifactRefused as refusal:
                # A commit that is repeated, its answer lost, finds its upload over: what was written has the key.
                opened = await self._write(begin) if refusal.code == "invalid" else opened
                if opened.status != "written":
                    raise
        if opened.status != "written" or opened.artifact is None:
            raise ArtifactRefused(opened.reason or "internal", opened.message or f"it was {opened.status}")
        return opened.artifact

    # --- Folders ---------------------------------------------------------------------------------------------------------

    async def begin_folder(self, name: str, key: str) -> ArtifactWriteResult:
        """A new version of the session's newest folder of this name. ``written``: it is stored under ``key`` already.
        Raises ArtifactRefused."""
        return await self._write(
            _params(
                WriteBegin, run_id=self._requests.run_id, op="begin", kind="folder", key=key, name=name, same_name=True
            )
        )

    async def put_file(self, upload_id: str, file: FolderFile) -> None:
        """The next file of a folder. Raises ArtifactRefused, and what its content raises."""
        content = file.content
        whole = content.size <= self.range_bytes
        first = _text(await content.read(0, content.size)) if whole else None
        refusal: ArtifactRefused | None = None
        for sha256 in artifact_hash_forms(file.sha256):
            params = _params(
                WriteFile,
                run_id=self._requests.run_id,
                op="file",
                upload_id=upload_id,
                path=file.path,
                size=content.size,
                sha256=sha256,
                content_type=file.content_type,
                **({"base64": first} if whole else {}),
            )
            try:
                opened = await self._write(params)
            except ArtifactRefused as fault:
                if fault.code != "invalid":
                    raise
                refusal = refusal or fault  # what the likeliest form was answered says more than the last one
            else:
                await self._send(upload_id, content, opened.received, sha256)
                return
        assert refusal is not None  # there is a form, and it was refused
        raise refusal

    async def commit(self, upload_id: str) -> ArtifactWriteResult:
        """``written``, or for a folder ``refused``. Raises ArtifactRefused."""
        return await self._write(_params(WriteCommit, run_id=self._requests.run_id, op="commit", upload_id=upload_id))

    # --- Both ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def ending(self, opened: ArtifactWriteResult) -> AsyncIterator[str]:
        """The id of an upload that is open: aborted where the block fails. One that a stop leaves ends with the run."""
        if opened.upload_id is None:
            raise ArtifactRefused("internal", "an upload was opened without an uploadId")
        try:
            yield opened.upload_id
        except PodHostError:
            with suppress(PodHostError):  # what failed is told; an abort that fails as well says nothing new
                await self._write(
                    _params(WriteAbort, run_id=self._requests.run_id, op="abort", upload_id=opened.upload_id)
                )
            raise

    async def _send(self, upload_id: str, content: Content, received: int, sha256: str | None = None) -> None:
        """The bytes from ``received`` on, chunk by chunk: each at the offset that the Runtime has come to."""
        while received < content.size:
            data = await content.read(received, min(self.range_bytes, content.size - received))
            if not data:
                raise ContentChanged("it became shorter while it was read")
            chunk = _params(
                WriteChunk,
                run_id=self._requests.run_id,
                op="chunk",
                upload_id=upload_id,
                offset=received,
                base64=_text(data),
                **({"sha256": sha256} if sha256 else {}),
            )
            answer = await self._write(chunk)
            if not received < answer.received <= received + len(data):
                raise ArtifactRefused("internal", f"{answer.received} bytes were taken of {received + len(data)}")
            received = answer.received

    async def _write(self, params: Sent) -> ArtifactWriteResult:
        answer: ArtifactWriteResult = await self._ask("artifact.write", params)
        return answer

    async def _ask(self, method: str, params: Sent) -> Any:
        try:
            return await self._requests.ask(method, params, self._finishes)
        except TurnThrown as refusal:
            raise ArtifactRefused(refusal.code, refusal.message) from refusal


def artifact_key(effect_id: str, part: int | str, sha256: str) -> str:
    """The key under which a call stores one of its parts: a call that ran again with the same bytes stores nothing new."""
    return f"{effect_id}:{part}:{sha256}"


def _params(kind: type[SentT], /, **members: Json) -> SentT:
    """A request. Raises ArtifactRefused for members that it does not take, a model's name for a file for one."""
    try:
        return kind(**members)
    except ValidationError as fault:
        raise ArtifactRefused("invalid", first_fault(fault)) from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
