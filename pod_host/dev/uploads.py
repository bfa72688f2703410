"""``artifact.write``: uploads in steps, of a file or of a folder file by file (Harness API v5, section 4b)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import mimetypes
import re
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from pod_host.contract.artifacts import WriteAbort, WriteBegin, WriteChunk, WriteCommit, WriteFile
from pod_host.contract.base import JsonObject
from pod_host.dev.artifacts import FOLDER_TYPE, Artifacts, folder_files, folder_hash, hash_file, meta
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database, load
from pod_host.dev.record import Record
from pod_host.dev.runs import Run
from pod_host.errors import RuntimeRefusal

Write: TypeAlias = WriteBegin | WriteFile | WriteChunk | WriteCommit | WriteAbort

_MEDIA_TYPE: Final = re.compile(r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(\s*;.*)?\Z")
_NOT_IN_A_NAME: Final = re.compile(r"[\x00-\x1f\x7f/\\]")
_TEXT_TYPES: Final = {
    ".md": "text/markdown",
    ".ts": "text/typescript",
    ".py": "text/x-python",
    ".sh": "text/x-shellscript",
}


@dataclass
class Part:
    """The bytes of one file as they come in. ``last``: the newest chunk's offset and hash, for a repeat of it."""

    path: Path
    received: int = 0
    last: tuple[int, bytes] | None = None


@dataclass
class Upload:
    """One open upload. ``files``: a folder's, each with its part; ``current``: the one in progress."""

    id: str
    run: Run
    begin: WriteBegin
    artifact_id: str | None
    name: str
    call_id: str | None
    folder: Path
    max_bytes: int
    part: Part
    files: dict[str, tuple[WriteFile, Part]] = field(default_factory=dict)
    current: str | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class Uploads:
    """An upload that its run leaves open ends with the run, and nothing of it is stored."""

    def __init__(self, config: RuntimeConfig, db: Database, record: Record, artifacts: Artifacts) -> None:
        self._config = config
        self._db = db
        self._record = record
        self._artifacts = artifacts
        self._root = config.state_dir / "uploads"
        shutil.rmtree(self._root, ignore_errors=True)  # a run that ended with the process before this one
        self._root.mkdir(mode=0o700)
        self._open: dict[str, Upload] = {}

    async def write(self, run: Run, params: Write) -> JsonObject:
        if isinstance(params, WriteBegin):
            return await self._begin(run, params)
        upload = self._open.get(params.upload_id)
        if upload is None or upload.run is not run:
            if isinstance(params, WriteAbort):
                return {"status": "aborted"}
            raise RuntimeRefusal("invalid", f"no upload {params.upload_id} is open in this run")
        async with upload.busy:
            if upload.id not in self._open:  # it ended while we waited
                raise RuntimeRefusal("invalid", f"no upload {params.upload_id} is open in this run")
            if isinstance(params, WriteAbort):
                self._close(upload)
                return {"status": "aborted"}
            if isinstance(params, WriteFile):
                return await self._file(upload, params)
            if isinstance(params, WriteChunk):
                return await self._chunk(upload, params)
            return await self._commit(upload)

    def run_over(self, run: Run) -> None:
        for upload in [upload for upload in self._open.values() if upload.run is run]:
            self._close(upload)

    # --- begin -----------------------------------------------------------------------------------------------------------

    async def _begin(self, run: Run, params: WriteBegin) -> JsonObject:
        known = self._artifacts.written(run.session_id, params.key)
        if known is not None:
            return {"status": "written", "artifact": meta(known), "created": False}
        artifact_id, name = self._names(run, params)
        call_id = self._call_id(run, params)
        if params.content_type is not None and not _MEDIA_TYPE.match(params.content_type):
            raise RuntimeRefusal("invalid", f"contentType: {params.content_type!r} is no media type")
        max_bytes = self._max_bytes(folder=params.kind == "folder")
        if params.size is not None and params.size > max_bytes:
            raise _too_large(params.size, max_bytes)
        data = self._decode(params.base64) if params.base64 is not None else None
        if data is not None and params.kind == "folder":
            raise RuntimeRefusal("invalid", "base64: a folder's bytes come with its files")
        upload_id = f"up_{secrets.token_hex(10)}"
        folder = self._root / upload_id
        folder.mkdir(mode=0o700)
        part = Part(folder / "whole")
        part.path.touch()
        upload = Upload(upload_id, run, params, artifact_id, name, call_id, folder, max_bytes, part)
        self._open[upload_id] = upload
        if data is None:
            return self._opened(upload, 0)
        async with upload.busy:
            try:
                await self._append(upload, part, 0, data)
                return await self._commit(upload)
            finally:
                self._close(upload)

    def _names(self, run: Run, params: WriteBegin) -> tuple[str | None, str]:
        """The artifact that gets a new version, or None, and the name."""
        if params.name is not None and (_NOT_IN_A_NAME.search(params.name) or params.name in (".", "..")):
            raise RuntimeRefusal("invalid", f"name: {params.name!r} is no name of an artifact")
        kind = params.kind or "file"
        if params.same_name and (kind != "folder" or params.artifact_id is not None):
            raise RuntimeRefusal("invalid", "sameName: goes with a folder's name alone")
        if kind == "folder" and params.name is None:
            raise RuntimeRefusal("invalid", "name: a folder needs one")
        if params.artifact_id is not None:
            row = self._artifacts.find(run.session_id, params.artifact_id)
            if row["kind"] != kind:
                raise RuntimeRefusal("not_found", f"artifact {params.artifact_id} is no {kind} of this session")
            if params.name is not None and kind == "file":
                self._record.warn("artifact.write begin: name and artifactId together; v5 says one or the other")
            return params.artifact_id, params.name or row["name"]
        if params.name is None:
            raise RuntimeRefusal("invalid", "name or artifactId is needed")
        if params.same_name:
            newest = self._artifacts.newest_folder(run.session_id, params.name)
            return (newest["id"] if newest is not None else None), params.name
        return None, params.name

    def _call_id(self, run: Run, params: WriteBegin) -> str | None:
        if params.effect_id is None:
            return None
        row = self._db.one("SELECT kind, turn_id, intent FROM effects WHERE id = ?", params.effect_id)
        if row is None or row["kind"] != "tool" or row["turn_id"] != run.turn_id:
            raise RuntimeRefusal("invalid", f"effectId: {params.effect_id} is no tool call of this turn")
        return str(load(row["intent"])["context"]["callId"])

    def _max_bytes(self, *, folder: bool) -> int:
        limits = self._config.artifact_limits
        left = max(0, limits.total - self._artifacts.total())
        return left if folder else min(limits.file, left)

    # --- bytes -----------------------------------------------------------------------------------------------------------

    async def _file(self, upload: Upload, params: WriteFile) -> JsonObject:
        if upload.begin.kind != "folder":
            raise RuntimeRefusal("invalid", "file: the upload is no folder's")
        self._check_progress(upload)
        _check_path(params.path)
        if params.path in upload.files:
            raise RuntimeRefusal("invalid", f"path: {params.path} came before")
        digest = self._hash_form(params.sha256)
        limits = self._config.artifact_limits
        if len(upload.files) >= self._config.limits.folder_entries:
            raise RuntimeRefusal("limit_exceeded", f"folderEntries is {self._config.limits.folder_entries}")
        if params.size > limits.file:
            raise _too_large(params.size, limits.file)
        if sum(file.size for file, _ in upload.files.values()) + params.size > upload.max_bytes:
            raise _too_large(params.size, upload.max_bytes)
        part = Part(upload.folder / f"{len(upload.files)}")
        part.path.touch()
        upload.files[params.path] = (params.model_copy(update={"sha256": digest}), part)
        upload.current = params.path
        if params.base64 is not None:
            await self._append(upload, part, 0, self._decode(params.base64))
        await self._check_whole(upload)
        return self._opened(upload, part.received)

    async def _chunk(self, upload: Upload, params: WriteChunk) -> JsonObject:
        data = self._decode(params.base64)
        if upload.begin.kind != "folder":
            if params.sha256 is not None:
                raise RuntimeRefusal("invalid", "sha256: goes with a folder's file")
            await self._append(upload, upload.part, params.offset, data)
            return self._opened(upload, upload.part.received)
        if upload.current is None or params.sha256 is None:
            raise RuntimeRefusal("invalid", "sha256: the folder's file in progress is to be named")
        file, part = upload.files[upload.current]
        if self._hash_form(params.sha256) != file.sha256:
            raise RuntimeRefusal("invalid", f"sha256: the file in progress is {file.path}")
        await self._append(upload, part, params.offset, data)
        await self._check_whole(upload)
        return self._opened(upload, part.received)

    async def _append(self, upload: Upload, part: Part, offset: int, data: bytes) -> None:
        digest = hashlib.sha256(data).digest()
        if part.last == (offset, digest) and offset + len(data) == part.received:
            return  # a repeat of the last chunk, whose answer was lost
        if offset != part.received:
            raise RuntimeRefusal("invalid", f"offset is {offset}, but {part.received} bytes were received")
        size = part.received + len(data)
        most = upload.files[upload.current][0].size if upload.current is not None else upload.max_bytes
        if upload.current is None and size > most:
            raise _too_large(size, most)
        if upload.current is not None and size > most:
            raise RuntimeRefusal("invalid", f"{size} bytes came for a file of {most}")
        await asyncio.to_thread(_append_to, part.path, data)
        part.received, part.last = size, (offset, digest)

    async def _check_whole(self, upload: Upload) -> None:
        """A file that is whole must be what its hash says, or the upload ends."""
        assert upload.current is not None
        file, part = upload.files[upload.current]
        if part.received == file.size and await asyncio.to_thread(hash_file, part.path) != file.sha256:
            self._close(upload)
            raise RuntimeRefusal("invalid", f"the bytes of {file.path} do not match its sha256; the upload is over")

    def _check_progress(self, upload: Upload) -> None:
        if upload.current is not None:
            file, part = upload.files[upload.current]
            if part.received != file.size:
                raise RuntimeRefusal("invalid", f"{file.path} is not whole: {part.received} of {file.size} bytes came")

    # --- commit ----------------------------------------------------------------------------------------------------------

    async def _commit(self, upload: Upload) -> JsonObject:
        known = self._artifacts.written(upload.run.session_id, upload.begin.key)
        if known is not None:  # another upload under this key was quicker
            self._close(upload)
            return {"status": "written", "artifact": meta(known), "created": False}
        if upload.begin.kind == "folder":
            return self._commit_folder(upload)
        declared, part = upload.begin.size, upload.part
        if declared is not None and declared != part.received:
            raise RuntimeRefusal("invalid", f"size is {declared}, but {part.received} bytes came")
        digest = await asyncio.to_thread(hash_file, part.path)
        new = 0 if self._artifacts.has(digest) else part.received
        if self._artifacts.total() + new > self._config.artifact_limits.total:
            raise _too_large(part.received, self._config.artifact_limits.total)
        with self._db.transaction():
            self._artifacts.keep(part.path, digest, part.received)
            row = self._artifacts.add(
                session_id=upload.run.session_id,
                turn_id=upload.run.turn_id,
                artifact_id=upload.artifact_id,
                key=upload.begin.key,
                kind="file",
                name=upload.name,
                content_type=upload.begin.content_type or _type_of(upload.name),
                size=part.received,
                sha256=digest,
                files=None,
                call_id=upload.call_id,
            )
        self._close(upload)
        return {"status": "written", "artifact": meta(row), "created": True}

    def _commit_folder(self, upload: Upload) -> JsonObject:
        self._check_progress(upload)
        files: JsonObject = {
            path: {"size": file.size, "sha256": file.sha256, "contentType": file.content_type or _type_of(path)}
            for path, (file, _) in sorted(upload.files.items())
        }
        session_id, key = upload.run.session_id, upload.begin.key
        with self._db.transaction():
            if upload.artifact_id is not None:
                latest = self._artifacts.find(session_id, upload.artifact_id)
                if folder_files(latest) == files:
                    self._artifacts.remember_key(session_id, key, latest)
                    self._close(upload)
                    return {"status": "written", "artifact": meta(latest), "created": False, "unchanged": True}
            fresh = {
                file.sha256: file.size for file, _ in upload.files.values() if not self._artifacts.has(file.sha256)
            }
            total = self._config.artifact_limits.total
            if self._artifacts.total() + sum(fresh.values()) > total:
                self._close(upload)
                return {
                    "status": "refused",
                    "reason": "tenant_total",
                    "message": f"limitBytes: the Tenant's artifacts may hold {total} bytes",
                    "limit": total,
                }
            for file, part in upload.files.values():
                self._artifacts.keep(part.path, file.sha256, file.size)
            row = self._artifacts.add(
                session_id=session_id,
                turn_id=upload.run.turn_id,
                artifact_id=upload.artifact_id,
                key=key,
                kind="folder",
                name=upload.name,
                content_type=FOLDER_TYPE,
                size=sum(file.size for file, _ in upload.files.values()),
                sha256=folder_hash(files),
                files=files,
                call_id=upload.call_id,
            )
        self._close(upload)
        return {"status": "written", "artifact": meta(row), "created": True}

    # --- Parts -----------------------------------------------------------------------------------------------------------

    def _opened(self, upload: Upload, received: int) -> JsonObject:
        answer: JsonObject = {
            "status": "open",
            "uploadId": upload.id,
            "maxBytes": upload.max_bytes,
            "received": received,
        }
        if upload.begin.kind == "folder":
            answer |= {
                "maxFileBytes": self._config.artifact_limits.file,
                "maxEntries": self._config.limits.folder_entries,
            }
        return answer

    def _close(self, upload: Upload) -> None:
        if self._open.pop(upload.id, None) is not None:
            shutil.rmtree(upload.folder, ignore_errors=True)

    def _decode(self, text: str) -> bytes:
        most = self._config.limits.chunk_bytes
        if len(text) > most // 3 * 4 + 8:
            raise RuntimeRefusal("limit_exceeded", f"a chunk of more than chunkBytes, {most}")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise RuntimeRefusal("invalid", "base64: not base64") from None
        if len(data) > most:
            raise RuntimeRefusal("limit_exceeded", f"a chunk of {len(data)} bytes; chunkBytes is {most}")
        return data

    def _hash_form(self, sha256: str) -> str:
        digest = sha256.removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise RuntimeRefusal("invalid", "sha256: 64 hexadecimal digits are needed")
        if digest != sha256:
            self._record.warn("artifact.write file: sha256 with a prefix; ArtifactMeta has plain hexadecimal digits")
        return digest


def _too_large(size: int, most: int) -> RuntimeRefusal:
    return RuntimeRefusal("limit_exceeded", f"{size} bytes; limitBytes is {most}")


def _check_path(path: str) -> None:
    parts = path.split("/")
    if any(part in ("", ".", "..") or _NOT_IN_A_NAME.search(part) for part in parts) or len(path) > 512:
        raise RuntimeRefusal("invalid", f"path: {path!r} is no relative path with / between its parts")


def _type_of(name: str) -> str:
    """A media type from a name."""
    suffix = Path(name).suffix.lower()
    return _TEXT_TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _append_to(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
