"""The Runtime's artifact store in memory, strict: uploads are its run's, offsets and hashes are checked, keys write once."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pod_host.contract.base import JsonObject
from pod_host.errors import RuntimeRefusal

PREFIX = "sha256:"


@dataclass
class Version:
    meta: JsonObject
    data: bytes = b""
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # path → content type, bytes
    effect_id: str | None = None


@dataclass
class Upload:
    run_id: str
    begin: JsonObject
    data: bytearray = field(default_factory=bytearray)
    files: dict[str, JsonObject] = field(default_factory=dict)
    current: str | None = None
    last: tuple[int, bytes] | None = None


@dataclass
class ArtifactStore:
    """``hash_prefix``: the form of a folder file's sha256 that is taken. ``fault``: called with each request's params once
    it was served; what it raises is what the host gets instead of the answer: an answer that was lost."""

    chunk_bytes: int = 16 * 1024 * 1024
    file_bytes: int = 100_000_000
    total_bytes: int = 1_000_000_000
    hash_prefix: str = ""
    is_tool_effect: Callable[[str], bool] = lambda effect_id: True
    fault: Callable[[JsonObject], None] | None = None
    versions: dict[str, list[Version]] = field(default_factory=dict)
    keys: dict[str, Version] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    opened: int = 0
    largest: int = 0  # of all chunks and ranges, in bytes

    def put(self, data: bytes, name: str = "a.txt", content_type: str = "text/plain", **meta: Any) -> Version:
        """Something that is there before the turn."""
        version = Version({"kind": "file", "name": name, "contentType": content_type, **meta}, data)
        return self._add(meta.get("artifactId"), version)

    def named(self, name: str) -> Version:
        """The newest version of the one artifact of this name."""
        (found,) = [versions[-1] for versions in self.versions.values() if versions[-1].meta["name"] == name]
        return found

    def read(self, params: JsonObject) -> JsonObject:
        versions = self.versions.get(params["artifactId"], [])
        wanted = params.get("version", len(versions))
        found = [version for version in versions if version.meta["version"] == wanted]
        if not found:
            raise RuntimeRefusal("not_found", f"no artifact {params['artifactId']}")
        offset, length = params.get("offset", 0), params.get("length", self.chunk_bytes)
        if length > self.chunk_bytes:
            raise RuntimeRefusal("limit_exceeded", f"chunkBytes is {self.chunk_bytes}")
        data = found[0].data
        if offset > len(data):
            raise RuntimeRefusal("invalid", f"offset is {offset}, but the artifact has {len(data)} bytes")
        part = data[offset : offset + length]
        self.largest = max(self.largest, len(part))
        eof = offset + len(part) == len(data)
        answer = {"artifact": found[0].meta, "offset": offset, "base64": _text(part), "eof": eof}
        return self._lost(params) or answer

    def write(self, run_id: str, params: JsonObject) -> JsonObject:
        answer = self._begin(run_id, params) if params["op"] == "begin" else self._step(run_id, params)
        return self._lost(params) or answer

    def _lost(self, params: JsonObject) -> JsonObject | None:
        if self.fault is not None:
            self.fault(params)
        return None

    def _begin(self, run_id: str, params: JsonObject) -> JsonObject:
        if params["key"] in self.keys:
            return {"status": "written", "artifact": self.keys[params["key"]].meta, "created": False}
        if "effectId" in params and not self.is_tool_effect(params["effectId"]):
            raise RuntimeRefusal("invalid", "effectId is no tool call of the turn")
        if "/" in params.get("name", "") or ("name" in params) == ("artifactId" in params):
            raise RuntimeRefusal("invalid", "name or artifactId is needed")
        if "artifactId" in params and params["artifactId"] not in self.versions:
            raise RuntimeRefusal("not_found", f"no artifact {params['artifactId']}")
        if params.get("size", 0) > self.file_bytes:
            raise RuntimeRefusal("limit_exceeded", f"limitBytes is {self.file_bytes}")
        self.opened += 1
        upload_id = f"up_{self.opened}"
        upload = self.uploads[upload_id] = Upload(run_id, params)
        if "base64" in params:
            self._take(upload, 0, params["base64"])
            return self._commit(upload_id, upload)
        return self._open(upload_id, upload)

    def _step(self, run_id: str, params: JsonObject) -> JsonObject:
        upload_id = params["uploadId"]
        upload = self.uploads.get(upload_id)
        if upload is None or upload.run_id != run_id:
            if params["op"] == "abort":
                return {"status": "aborted"}
            raise RuntimeRefusal("invalid", f"no upload {upload_id}")
        if params["op"] == "abort":
            del self.uploads[upload_id]
            return {"status": "aborted"}
        if params["op"] == "commit":
            return self._commit(upload_id, upload)
        if params["op"] == "file":
            self._file(upload_id, upload, params)
        else:
            file = upload.files[upload.current] if upload.current is not None else None
            assert (params.get("sha256") == file["sha256"]) if file else "sha256" not in params
            self._take(upload, params["offset"], params["base64"])
        self._check_whole(upload_id, upload)
        return self._open(upload_id, upload)

    def _file(self, upload_id: str, upload: Upload, params: JsonObject) -> None:
        if params["sha256"].startswith(PREFIX) != bool(self.hash_prefix):
            raise RuntimeRefusal("invalid", "sha256: another form is needed")
        path = params["path"]
        if "\\" in path or path in upload.files or any(part in ("", ".", "..") for part in path.split("/")):
            raise RuntimeRefusal("invalid", f"path: {path!r}")
        if params["size"] > self.file_bytes:
            raise RuntimeRefusal("limit_exceeded", f"limitBytes is {self.file_bytes}")
        assert (
            upload.current is None or len(upload.files[upload.current]["data"]) == upload.files[upload.current]["size"]
        )
        upload.files[path] = {**params, "data": bytearray()}
        upload.current, upload.last = path, None
        if "base64" in params:
            self._take(upload, 0, params["base64"])

    def _take(self, upload: Upload, offset: int, text: str) -> None:
        data = base64.b64decode(text, validate=True)
        self.largest = max(self.largest, len(data))
        if len(data) > self.chunk_bytes:
            raise RuntimeRefusal("limit_exceeded", f"chunkBytes is {self.chunk_bytes}")
        held = upload.data if upload.current is None else upload.files[upload.current]["data"]
        if upload.last == (offset, data) and offset + len(data) == len(held):
            return
        if offset != len(held):
            raise RuntimeRefusal("invalid", f"offset is {offset}, but {len(held)} bytes were received")
        held += data
        upload.last = (offset, data)

    def _check_whole(self, upload_id: str, upload: Upload) -> None:
        file = upload.files[upload.current] if upload.current is not None else None
        if file is None or len(file["data"]) < file["size"]:
            return
        if hashlib.sha256(file["data"]).hexdigest() != file["sha256"].removeprefix(PREFIX):
            del self.uploads[upload_id]
            raise RuntimeRefusal("invalid", "the bytes do not match the sha256")

    def _commit(self, upload_id: str, upload: Upload) -> JsonObject:
        begin = upload.begin
        total = len(upload.data) + sum(file["size"] for file in upload.files.values())
        del self.uploads[upload_id]
        if total > self.total_bytes:
            if begin.get("kind") == "folder":
                reason = {"reason": "tenant_total", "message": "too much", "limit": self.total_bytes}
                return {"status": "refused", **reason}
            raise RuntimeRefusal("limit_exceeded", f"limitBytes is {self.total_bytes}")
        assert begin.get("size", total) == total
        meta = {"kind": begin.get("kind", "file"), "name": begin.get("name"), "contentType": begin.get("contentType")}
        files = {path: (file["contentType"], bytes(file["data"])) for path, file in upload.files.items()}
        version = Version(meta, bytes(upload.data), files, begin.get("effectId"))
        self.keys[begin["key"]] = self._add(begin.get("artifactId"), version)
        return {"status": "written", "artifact": version.meta, "created": True}

    def _add(self, artifact_id: str | None, version: Version) -> Version:
        name = artifact_id or f"af_{len(self.versions) + 1}"
        versions = self.versions.setdefault(name, [])
        if versions:
            version.meta = {**versions[-1].meta, **{k: v for k, v in version.meta.items() if v is not None}}
        version.meta = {
            **version.meta,
            "artifactId": name,
            "version": len(versions) + 1,
            "contentType": version.meta.get("contentType") or "application/octet-stream",
            "size": len(version.data),
            "sha256": hashlib.sha256(version.data).hexdigest(),
        }
        versions.append(version)
        return version

    def _open(self, upload_id: str, upload: Upload) -> JsonObject:
        held = upload.data if upload.current is None else upload.files[upload.current]["data"]
        answer = {"status": "open", "uploadId": upload_id, "maxBytes": self.total_bytes, "received": len(held)}
        if upload.begin.get("kind") == "folder":
            answer |= {"maxFileBytes": self.file_bytes, "maxEntries": 10_000}
        return answer


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
