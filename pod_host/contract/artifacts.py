"""Artifacts: read, and written in steps (Harness API v5, section 4b)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from pod_host.contract.base import Count, Id, Json, Received, Sent, Text1

Name = Annotated[str, Field(min_length=1, max_length=255)]


class ArtifactReadParams(Sent):
    """``length`` 0 asks for the metadata alone; both are in bytes."""

    run_id: Id
    artifact_id: Id
    version: Json = None
    offset: Count | None = None
    length: Count | None = None


class ArtifactMeta(Received):
    artifact_id: Id
    kind: str
    name: str
    version: int | str
    content_type: str | None = None
    size: int = 0
    sha256: str | None = None
    tenant_wide: bool = False


class ArtifactReadResult(Received):
    artifact: ArtifactMeta
    offset: int = 0
    base64: str = ""
    eof: bool = True


class WriteBegin(Sent):
    """Opens an upload of a new file artifact (``name``) or a new version (``artifact_id``). ``base64``: all of it."""

    run_id: Id
    op: Literal["begin"]
    key: Text1
    kind: Literal["folder"] | None = None
    name: Name | None = None
    artifact_id: Id | None = None
    same_name: bool | None = None
    content_type: str | None = None
    size: Count | None = None
    effect_id: Id | None = None
    base64: str | None = None


class WriteFile(Sent):
    """The next file of a folder. ``path`` is relative, ``/``-separated; ``sha256``: see `open_points`."""

    run_id: Id
    op: Literal["file"]
    upload_id: Id
    path: Text1
    size: Count
    sha256: Text1
    content_type: str | None = None
    base64: str | None = None


class WriteChunk(Sent):
    """``sha256`` names the file in progress of a folder; absent for a file artifact."""

    run_id: Id
    op: Literal["chunk"]
    upload_id: Id
    offset: Count
    base64: str
    sha256: Text1 | None = None


class WriteCommit(Sent):
    run_id: Id
    op: Literal["commit"]
    upload_id: Id


class WriteAbort(Sent):
    run_id: Id
    op: Literal["abort"]
    upload_id: Id


ArtifactWriteParams: TypeAlias = Annotated[
    WriteBegin | WriteFile | WriteChunk | WriteCommit | WriteAbort, Field(discriminator="op")
]
ARTIFACT_WRITE: TypeAdapter[WriteBegin | WriteFile | WriteChunk | WriteCommit | WriteAbort] = TypeAdapter(
    ArtifactWriteParams
)


class ArtifactWriteResult(Received):
    """``open``, ``written``, ``refused`` (a folder past a total) or ``aborted``."""

    status: Literal["open", "written", "refused", "aborted"]
    upload_id: str | None = None
    max_bytes: int | None = None
    max_file_bytes: int | None = None
    max_entries: int | None = None
    received: int = 0
    artifact: ArtifactMeta | None = None
    created: bool = False
    unchanged: bool = False
    reason: str | None = None
    message: str | None = None
    limit: int | None = None
