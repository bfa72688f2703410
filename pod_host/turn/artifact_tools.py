"""``read_artifact`` and ``save_artifact`` (Harness API v5, section 4b): files that are kept with the conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pod_host import limits
from pod_host.contract.artifacts import ArtifactMeta
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import HarnessTarget
from pod_host.contract.encoding import encode
from pod_host.contract.model_call import input_kind
from pod_host.errors import InputIssue, SandboxError
from pod_host.turn.artifacts import ArtifactRefused, Artifacts, Content, ContentChanged, Piece
from pod_host.turn.checking import OwnSchema
from pod_host.turn.journal import Execution, Fate, Known
from pod_host.turn.media_types import OTHER, media_type_of
from pod_host.turn.previews import fitting_prefix
from pod_host.turn.projection import Reader
from pod_host.turn.results import failure
from pod_host.turn.shaping import reference
from pod_host.turn.toolset import Tool
from pod_host.turn.workspace_files import FileRefused, WorkspaceFiles

_CHARACTER: Final = 4  # bytes of one at most: a page holds one at least
_OUTCOME_BYTES: Final = 128  # of a result beside its output
_ID: Final[JsonObject] = {"type": "string", "minLength": 1, "maxLength": 512}
_READ: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "artifactId": _ID,
        "version": {"type": "integer", "minimum": 1, "description": "The latest one when left out."},
        "offset": {"type": "integer", "minimum": 0, "description": "In bytes, 0 when left out: nextOffset reads on."},
        "length": {
            "type": "integer",
            "minimum": 1,
            "maximum": limits.ARTIFACT_PAGE_BYTES,
            "description": f"In bytes, {limits.ARTIFACT_PAGE_BYTES} when left out.",
        },
    },
    "required": ["artifactId"],
    "additionalProperties": False,
}
_PATH: Final[JsonObject] = {"type": "string", "minLength": 1, "description": "A file to store."}
_SAVE: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "path": _PATH,
        "content": {"type": "string", "description": "Or a text to store."},
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": 255,
            "description": "Of the artifact, such as report.md; the file's own when left out.",
        },
        "contentType": {"type": "string", "minLength": 1, "description": "Its media type; by its name when left out."},
        "artifactId": {**_ID, "description": "To store a new version of this artifact of the conversation."},
    },
    "additionalProperties": False,
}
_READ_SCHEMA: Final = OwnSchema(_READ)
_SAVE_SCHEMA: Final = OwnSchema(_SAVE)
_SAVE_CODES: Final = {"not_found": "artifact.not_found", "limit_exceeded": "artifact.too_large"}
_READ_CODES: Final = {"not_found": "artifact.not_found", "invalid": "artifact.invalid_input"}


@dataclass(frozen=True, slots=True)
class ArtifactTools:
    """``reader``: the model that is shown images. ``files``: None without a sandbox. ``outputs``: where the folder lies that
    is saved by itself, None without one."""

    artifacts: Artifacts
    reader: Reader
    files: WorkspaceFiles | None
    outputs: str | None

    def section(self) -> str:
        """What the prompt says of artifacts."""
        lines = [
            "# Artifacts",
            "- Artifacts are files kept with the conversation, in versions, which people can open. read_artifact reads one,"
            " save_artifact stores one.",
            "- What is too long to show comes as a preview with an artifact's id: read_artifact reads all of it.",
        ]
        if self.outputs is not None:
            lines.append(
                f"- What lies in {self.outputs} when the turn ends is saved by itself, as the artifact outputs."
            )
        return "\n".join(lines)

    def tools(self) -> Iterable[Tool]:
        shown = sorted((self.reader.inputs or frozenset()) - {"text"})
        files = f" A file of another kind that you can see ({', '.join(shown)}) is shown whole." if shown else ""
        yield Tool(
            name="read_artifact",
            description=(
                f"Reads an artifact: text, at most {limits.ARTIFACT_PAGE_BYTES // 1024} KiB at once; nextOffset says where"
                f" it goes on.{files}"
            ),
            input_schema=_READ,
            target=HarnessTarget(kind="harness"),
            parallel=True,
            check=_READ_SCHEMA.issues,
            run=self._read,
        )
        properties = dict(_SAVE["properties"])
        if self.files is None:
            del properties["path"]
        what = "a file of the sandbox (path) or a text (content)" if self.files else "a text"
        yield Tool(
            name="save_artifact",
            description=f"Stores {what} as a new artifact, or with artifactId as a new version of one.",
            input_schema={**_SAVE, "properties": properties},
            target=HarnessTarget(kind="harness"),
            parallel=True,
            check=_check_save,
            run=self._save,
        )

    # --- read_artifact ---------------------------------------------------------------------------------------------------

    async def _read(self, arguments: JsonObject, execution: Execution) -> Fate:
        offset, length = arguments.get("offset", 0), arguments.get("length", limits.ARTIFACT_PAGE_BYTES)
        try:
            piece = await self.artifacts.read_all(
                arguments["artifactId"], arguments.get("version"), max(length, _CHARACTER), offset=offset
            )
        except ArtifactRefused as refusal:
            return Known(failure(_READ_CODES.get(refusal.code, "artifact.unavailable"), refusal.message))
        meta = piece.meta
        kind = input_kind(meta.content_type or OTHER)
        if meta.kind == "folder":
            return Known(failure("artifact.not_text", f"{meta.name} is a folder: its files are not read here."))
        if kind in ("image", "pdf", "office", "audio", "video"):
            return Known(self._shown(meta))
        text = _whole_characters(piece, offset, length)
        if text is None:
            return Known(failure("artifact.not_text", f"{meta.name} ({meta.content_type}) holds no UTF-8 text there."))
        skipped, content = text
        offset += skipped
        head = {**_facts(meta), "offset": offset}
        room = min(limits.ARTIFACT_PAGE_BYTES, execution.most_bytes - _OUTCOME_BYTES - len(encode(head)))
        content = fitting_prefix(content, room) or content[:1]
        end = offset + len(content.encode())
        more = {"nextOffset": end} if end < meta.size else {}
        return Known({"kind": "completed", "output": {**head, "content": content, **more}})

    def _shown(self, meta: ArtifactMeta) -> JsonObject:
        media_type = meta.content_type or OTHER
        if meta.size > self.reader.file_bytes:
            text = f"{meta.name} holds {meta.size} bytes: you can be shown files of at most {self.reader.file_bytes}."
            return failure("artifact.not_text", text)
        if not self.reader.inputs or not self.reader.reads(media_type, {}):
            return failure(
                "artifact.not_text", f"{meta.name} is {media_type}, which is no text and cannot be shown to you."
            )
        files = [{"mediaType": media_type, "reference": reference(meta)}]
        return {"kind": "completed", "output": _facts(meta), "files": files}

    # --- save_artifact ---------------------------------------------------------------------------------------------------

    async def _save(self, arguments: JsonObject, execution: Execution) -> Fate:
        path = arguments.get("path")
        if path is not None and self.files is None:
            return Known(
                failure("artifact.no_sandbox", "There is no sandbox, so there is no file to store: send content.")
            )
        try:
            content = await self._content(arguments)
            meta = await self.artifacts.write(
                content, key=execution.effect_id, effect_id=execution.effect_id, **_names(arguments)
            )
        except FileRefused as refusal:
            code = "artifact.not_found" if refusal.code == "sandbox.not_found" else "artifact.invalid_input"
            return Known(failure(code, refusal.message))
        except ContentChanged as fault:
            return Known(failure("artifact.rejected", f"{fault}. Save it again."))
        except SandboxError as fault:
            return Known(failure("sandbox.error", str(fault)))
        except ArtifactRefused as refusal:
            return Known(failure(_SAVE_CODES.get(refusal.code, "artifact.rejected"), refusal.message))
        return Known({"kind": "completed", "output": {**_facts(meta), "sha256": meta.sha256}})

    async def _content(self, arguments: JsonObject) -> Content:
        if "content" in arguments:
            try:
                return Content.of(arguments["content"].encode())
            except UnicodeEncodeError:
                raise ArtifactRefused("invalid", "content holds half of a surrogate pair, which is no text") from None
        assert self.files is not None  # looked at before
        return await self.files.open(arguments["path"])


def _check_save(arguments: JsonObject) -> Sequence[InputIssue]:
    issues = _SAVE_SCHEMA.issues(arguments)
    if issues:
        return issues
    if ("path" in arguments) == ("content" in arguments):
        return [InputIssue(path=[], code="one_of", message="exactly one of path and content is needed")]
    if "content" in arguments and "name" not in arguments and "artifactId" not in arguments:
        return [InputIssue(path=["name"], code="required", message="a name is needed for a text")]
    return []


def _names(arguments: JsonObject) -> dict[str, str]:
    """What the upload says of the artifact. A new version keeps its artifact's name."""
    named: dict[str, str] = {}
    if "artifactId" in arguments:
        named["artifact_id"] = arguments["artifactId"]
    else:
        named["name"] = arguments.get("name") or arguments["path"].rstrip("/").rpartition("/")[2][:255] or "file"
        media_type = media_type_of(named["name"])
        if media_type == OTHER and "content" in arguments:
            media_type = "text/plain"
        if media_type != OTHER:
            named["content_type"] = media_type
    if "contentType" in arguments:
        named["content_type"] = arguments["contentType"]
    return named


def _facts(meta: ArtifactMeta) -> dict[str, Json]:
    return {
        "artifactId": meta.artifact_id,
        "version": meta.version,
        "name": meta.name,
        "contentType": meta.content_type,
        "size": meta.size,
    }


def _whole_characters(piece: Piece, offset: int, length: int) -> tuple[int, str] | None:
    """How many bytes of a character before them were skipped, and the whole characters within ``length`` bytes, one at
    least where there is one; None for what is no UTF-8."""
    data, skipped = piece.data, 0
    while offset and skipped < min(len(data), _CHARACTER - 1) and data[skipped] & 0xC0 == 0x80:
        skipped += 1
    try:
        text = data[skipped:].decode()
    except UnicodeDecodeError as fault:
        cut = fault.reason == "unexpected end of data" and not piece.eof
        if not cut:
            return None
        text = data[skipped : skipped + fault.start].decode()
    return skipped, text.encode()[:length].decode(errors="ignore") or text[:1]
