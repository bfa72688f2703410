"""Artifacts: files and folders of a session in versions, their bytes by hash on disk (Harness API v5, section 4b)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Final

from pod_host.contract.artifacts import ArtifactReadParams
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical, sha256_hex
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database, dump, load
from pod_host.dev.record import Place, Record
from pod_host.errors import RuntimeRefusal

FOLDER_TYPE: Final = "application/vnd.nylorun.folder"


class Artifacts:
    """The store and its reading half; `uploads` writes."""

    def __init__(self, config: RuntimeConfig, db: Database, record: Record) -> None:
        self._config = config
        self._db = db
        self._record = record
        self._contents = config.state_dir / "contents"
        self._contents.mkdir(mode=0o700, exist_ok=True)

    # --- Reading ---------------------------------------------------------------------------------------------------------

    async def read(self, session_id: str, params: ArtifactReadParams) -> JsonObject:
        row = self.find(session_id, params.artifact_id, params.version)
        most = self._config.limits.chunk_bytes
        length = most if params.length is None else params.length
        if length > most:
            raise RuntimeRefusal("limit_exceeded", f"length is {length}; chunkBytes is {most}")
        offset = params.offset or 0
        if row["kind"] == "folder":
            return {"artifact": meta(row), "offset": 0, "base64": "", "eof": True}
        if offset > row["size"]:
            raise RuntimeRefusal("invalid", f"offset is {offset}, but the artifact has {row['size']} bytes")
        data = await asyncio.to_thread(_read_range, self.content_path(row["sha256"]), offset, length)
        return {
            "artifact": meta(row),
            "offset": offset,
            "base64": base64.b64encode(data).decode(),
            "eof": offset + len(data) == row["size"],
        }

    async def file(self, session_id: str, reference: JsonObject) -> tuple[bytes, str]:
        """A media part's bytes and media type. Raises LookupError: not the session's, missing, a folder, too large."""
        artifact_id = reference.get("artifactId")
        if not isinstance(artifact_id, str):
            raise LookupError("the reference names no artifactId")
        try:
            row = self.find(session_id, artifact_id, reference.get("version"))
        except RuntimeRefusal as refusal:
            raise LookupError(refusal.message) from None
        if row["kind"] == "folder":
            raise LookupError(f"artifact {artifact_id} is a folder")
        most = self._config.limits.model_file_bytes
        if row["size"] > most:
            raise LookupError(f"artifact {artifact_id} is {row['size']} bytes; modelFileBytes is {most}")
        return await asyncio.to_thread(self.content_path(row["sha256"]).read_bytes), row["content_type"]

    def find(self, session_id: str, artifact_id: str, version: Json = None) -> sqlite3.Row:
        """One version, the latest by default. Raises RuntimeRefusal not_found: another session's and a missing one alike."""
        sql = "SELECT * FROM artifacts WHERE session_id = ? AND id = ?"
        if version is None:
            row = self._db.one(f"{sql} ORDER BY version DESC LIMIT 1", session_id, artifact_id)
        else:
            row = self._db.one(f"{sql} AND version = ?", session_id, artifact_id, _version(version))
        if row is None:
            raise RuntimeRefusal("not_found", f"no artifact {artifact_id} of this session")
        return row

    # --- Writing, for `uploads` ------------------------------------------------------------------------------------------

    def written(self, session_id: str, key: str) -> sqlite3.Row | None:
        """The version that was written under ``key`` before."""
        known = self._db.one("SELECT * FROM artifact_keys WHERE session_id = ? AND key = ?", session_id, key)
        return self.find(session_id, known["artifact_id"], known["version"]) if known is not None else None

    def newest_folder(self, session_id: str, name: str) -> sqlite3.Row | None:
        return self._db.one(
            "SELECT * FROM artifacts WHERE session_id = ? AND kind = 'folder' AND name = ? "
            "ORDER BY created DESC, rowid DESC LIMIT 1",
            session_id,
            name,
        )

    def total(self) -> int:
        """Bytes of everything stored; content that several versions share counts once."""
        return int(self._db.value("SELECT coalesce(sum(size), 0) FROM contents"))

    def has(self, sha256: str) -> bool:
        return self._db.value("SELECT 1 FROM contents WHERE sha256 = ?", sha256) is not None

    def content_path(self, sha256: str) -> Path:
        return self._contents / sha256

    def keep(self, source: Path, sha256: str, size: int) -> None:
        """Take an upload's file into the store, by its hash."""
        os.replace(source, self.content_path(sha256))
        self._db.run("INSERT OR IGNORE INTO contents VALUES (?, ?)", sha256, size)

    def add(
        self,
        *,
        session_id: str,
        turn_id: str,
        artifact_id: str | None,
        key: str,
        kind: str,
        name: str,
        content_type: str,
        size: int,
        sha256: str,
        files: JsonObject | None,
        call_id: str | None,
    ) -> sqlite3.Row:
        """A new artifact, or a new version of ``artifact_id``. Within the caller's transaction."""
        new_id = artifact_id or f"af_{secrets.token_hex(10)}"
        version = 1 + int(self._db.value("SELECT coalesce(max(version), 0) FROM artifacts WHERE id = ?", new_id))
        self._db.run(
            "INSERT INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            new_id,
            version,
            session_id,
            kind,
            name,
            content_type,
            size,
            sha256,
            dump(files) if files is not None else None,
            time.time(),
        )
        self._db.run("INSERT INTO artifact_keys VALUES (?, ?, ?, ?)", session_id, key, new_id, version)
        row = self.find(session_id, new_id, version)
        self._record.add(
            "artifact.created" if version == 1 else "artifact.version.created",
            Place(session_id, turn_id=turn_id),
            artifact=meta(row),
            callId=call_id,
        )
        return row

    def remember_key(self, session_id: str, key: str, row: sqlite3.Row) -> None:
        self._db.run("INSERT INTO artifact_keys VALUES (?, ?, ?, ?)", session_id, key, row["id"], row["version"])


def meta(row: sqlite3.Row) -> JsonObject:
    """ArtifactMeta."""
    return {
        "artifactId": row["id"],
        "kind": row["kind"],
        "name": row["name"],
        "version": row["version"],
        "contentType": row["content_type"],
        "size": row["size"],
        "sha256": row["sha256"],
        "tenantWide": False,
    }


def folder_hash(files: JsonObject) -> str:
    """A folder's hash: over its paths and their contents' hashes."""
    return sha256_hex(canonical({path: entry["sha256"] for path, entry in files.items()}))


def folder_files(row: sqlite3.Row) -> JsonObject:
    """Path → ``{size, sha256, contentType}``."""
    files: JsonObject = load(row["files"])
    return files


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_range(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _version(version: Json) -> int:
    if isinstance(version, str) and version.isascii() and version.isdigit() and len(version) < 12:
        return int(version)
    if isinstance(version, int) and not isinstance(version, bool):
        return version
    raise RuntimeRefusal("invalid", "version: a number is needed")
