"""Results of MCP and HTTP tools that fit (Harness API v5, section 5b): what is too long is stored as an artifact of the
call, with a preview in its place; files within an answer are stored whatever their size.

The cap of a result is RESULT_INLINE_BYTES, or the call's equal share of the step's entry where that is less, or what is left
of the step's budget: the results of a step are shaped one after another, as they come, and small ones are not counted. All
results of a step share what the model's window has room for. What was recorded of a call stands, so a replay need not spend
the budget in the same order.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final

from pod_host import limits
from pod_host.contract.artifacts import ArtifactMeta
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import input_kind
from pod_host.turn.artifacts import ArtifactRefused, Artifacts, Content, artifact_key
from pod_host.turn.media_types import OTHER, suffix_of
from pod_host.turn.pieces import base64_bytes, is_deep, json_text, sha256_of
from pod_host.turn.previews import preview
from pod_host.turn.projection import Reader
from pod_host.turn.results import failure, fit
from pod_host.turn.text import readable

_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(\s*;[ -~]*)?")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_CHARACTERS: Final = 200  # of the tool's name in an artifact's


@dataclass(slots=True)
class StepBudget:
    """What the results of one step may hold together, in bytes of JSON. ``left``: those of MCP and HTTP tools. ``room``: all
    of them, so that the model can read what it asked for. ``waiting``: calls whose results are still to come."""

    left: int = limits.STEP_RESULT_BYTES
    room: int = limits.MODEL_CALL_BYTES
    waiting: int = 1
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def most(self) -> int:
        """For the next result: all that there is, but for a little for each of the others."""
        others = max(self.waiting - 1, 0)
        reserved = others * min(limits.RESULT_SMALL_BYTES, self.room // (2 * others + 1))
        return max(self.room - reserved, limits.RESULT_STUB_BYTES)

    @property
    def even(self) -> int:
        """For one that is fitted as its call begins, beside the others."""
        return max(self.room // max(self.waiting, 1), limits.RESULT_STUB_BYTES)

    @property
    def most_stored(self) -> int:
        """For the next result of an MCP or HTTP tool: what is left, or a stub that names its artifact."""
        return max(min(self.left, limits.RESULT_INLINE_BYTES, self.most), limits.RESULT_STUB_BYTES)

    def spend(self, size: int, *, stored: bool = False) -> None:
        """``stored``: of an MCP or HTTP tool."""
        self.waiting -= 1
        self.room = max(self.room - size, 0)
        if stored and size > limits.RESULT_SMALL_BYTES:
            self.left -= size


@dataclass(frozen=True, slots=True)
class Shaper:
    """``artifacts``: where parts are stored. ``reader``: the model that the results are for."""

    artifacts: Artifacts
    reader: Reader

    async def shape(self, value: Json, *, effect_id: str, tool_name: str, most_bytes: int, budget: StepBudget) -> Json:
        """An outcome's value, of any size and form, as one whose JSON takes at most RESULT_INLINE_BYTES, about
        ``most_bytes``, and what ``budget`` has left. Raises Stopped."""
        async with budget.turn:
            shaped = await self._shape(value, effect_id, tool_name, most_bytes, budget.most_stored)
            budget.spend(len(await json_text(shaped)), stored=True)
            return shaped

    async def _shape(self, value: Json, effect_id: str, tool_name: str, share: int, left: int) -> Json:
        whole = min(share, max(left, limits.RESULT_SMALL_BYTES))  # what is so short is not shaped
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind in ("failed", "denied"):
            return fit(value, whole)
        if is_deep(value, limits.RESULT_DEPTH):
            return failure(
                "tool.result-too-large", f"The result is nested more than {limits.RESULT_DEPTH} levels deep."
            )
        completed = kind == "completed" and "output" in value
        outcome = value if completed else {"kind": "completed", "output": value}
        call = _Call(self.artifacts, self.reader, effect_id, tool_name, min(share, left), whole)
        shaped = await call.shape(outcome)
        return value if shaped is outcome else shaped


@dataclass(slots=True)
class _Call:
    """The shaping of one result to ``most`` bytes, where it takes more than ``whole``. ``files``: what of it the model is
    shown. ``stored``: how many parts were."""

    artifacts: Artifacts
    reader: Reader
    effect_id: str
    tool_name: str
    most: int
    whole: int
    files: list[JsonObject] = field(default_factory=list)
    stored: int = 0

    async def shape(self, outcome: JsonObject) -> JsonObject:
        shaped = outcome
        parts = _parts(outcome["output"])
        binary = [(index, part) for index, part in enumerate(parts) if _data(part) is not None]
        if binary:
            parts = list(parts)
            for index, part in binary:
                parts[index] = await self._file(index, part)
            shaped = self._with(outcome, parts)
        size = len(await json_text(shaped))
        if size <= self.whole:
            return shaped
        parts = list(parts)
        for index in _longest_texts(parts):
            if size <= self.most:
                break
            before, parts[index] = parts[index], await self._text_part(index, parts[index])
            size -= len(await json_text(before)) - len(await json_text(parts[index]))
        if size <= self.most:
            return {**self._with(outcome, parts), "truncated": True}
        return await self._whole(self._with(outcome, parts) if parts else shaped)

    def _with(self, outcome: JsonObject, parts: list[Json]) -> JsonObject:
        output = outcome["output"]
        output = parts if isinstance(output, list) else {**output, "content": parts}
        files = [*(outcome.get("files") or []), *self.files]
        return {**outcome, "output": output, **({"files": files} if files else {})}

    async def _file(self, index: int, part: JsonObject) -> JsonObject:
        """An image, a sound or a file within an answer, as its artifact."""
        text, given = _data(part) or "", _media_type(part)
        head = {"type": part["type"], **_uri(part)}
        media_type = given if isinstance(given, str) and _MEDIA_TYPE.fullmatch(given) else OTHER
        data = await base64_bytes(text) if self.stored < limits.RESULT_PARTS else b""
        if data is None:
            return {**head, "dropped": "its data is no base64", "contentType": media_type, "size": len(text)}
        try:
            meta = await self._store(index, data, media_type)
        except ArtifactRefused as refusal:
            size = len(data) or len(text) // 4 * 3
            return {**head, "dropped": _why(refusal), "contentType": media_type, "size": size}
        if (
            input_kind(media_type) == "image"
            and self.reader.inputs
            and self.reader.reads(media_type, {"size": meta.size})
        ):
            self.files.append({"mediaType": media_type, "reference": reference(meta)})
        return {
            **head,
            "artifactId": meta.artifact_id,
            "version": meta.version,
            "contentType": media_type,
            "size": meta.size,
        }

    async def _text_part(self, index: int, part: JsonObject) -> JsonObject:
        text = _text(part) or ""
        stub = await self._stub(index, readable(text).encode(), _media_type(part), {"type": part["type"], **_uri(part)})
        return {**stub, "preview": preview(text, self.most // 10)}

    async def _whole(self, outcome: JsonObject) -> JsonObject:
        output = outcome["output"]
        if isinstance(output, str):
            data, media_type = readable(output).encode(), "text/plain"
        else:
            data, media_type = await json_text(output), "application/json"
        stub = await self._stub("whole", data, media_type, {})
        shaped = {**outcome, "output": {**stub, "preview": ""}, "truncated": True}
        shown = preview(data.decode(errors="replace"), self.most - len(await json_text(shaped)))
        return {**shaped, "output": {**stub, "preview": shown}}

    async def _stub(self, part: int | str, data: bytes, media_type: str, head: JsonObject) -> JsonObject:
        """What names a stored text; why it was not stored, where the Runtime refused it."""
        media_type = media_type if _MEDIA_TYPE.fullmatch(media_type) else "text/plain"
        stub = {**head, "truncated": True}
        try:
            meta = await self._store(part, data, media_type)
        except ArtifactRefused as refusal:
            return {**stub, "dropped": _why(refusal), "contentType": media_type, "size": len(data)}
        named = {"artifactId": meta.artifact_id, "version": meta.version}
        return {**stub, **named, "contentType": media_type, "size": len(data)}

    async def _store(self, part: int | str, data: bytes, media_type: str) -> ArtifactMeta:
        if self.stored >= limits.RESULT_PARTS and part != "whole":
            raise ArtifactRefused("limit_exceeded", f"only {limits.RESULT_PARTS} parts of a result are stored")
        self.stored += 1
        tool = _NOT_IN_A_NAME.sub("_", self.tool_name)[:_NAME_CHARACTERS]
        place = "" if part == "whole" else f"-{part}"
        return await self.artifacts.write(
            Content.of(data),
            key=artifact_key(self.effect_id, part, await sha256_of(data)),
            effect_id=self.effect_id,
            name=f"{tool}-result{place}.{suffix_of(media_type)}",
            content_type=media_type,
        )


def reference(meta: ArtifactMeta) -> JsonObject:
    """What names a version of an artifact in a media part."""
    return {"artifactId": meta.artifact_id, "version": meta.version, "name": meta.name}


def _parts(output: Json) -> list[Json]:
    """The content of an MCP answer, alone or beside its structured form; empty for any other output."""
    if isinstance(output, dict) and set(output) == {"structuredContent", "content"}:
        output = output["content"]
    if isinstance(output, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in output
    ):
        return output
    return []


def _data(part: JsonObject) -> str | None:
    """The base64 in a part that is a file."""
    data = part.get("data") if part["type"] in ("image", "audio") else _resource(part).get("blob")
    return data if isinstance(data, str) else None


def _text(part: JsonObject) -> str | None:
    text = part.get("text") if part["type"] == "text" else _resource(part).get("text")
    return text if isinstance(text, str) else None


def _longest_texts(parts: list[Json]) -> list[int]:
    """The places of texts that may be stored, the longest first."""
    lengths = {index: len(text) for index, part in enumerate(parts) if (text := _text(part)) is not None}
    return sorted(
        (index for index in lengths if lengths[index] > limits.RESULT_SMALL_BYTES), key=lambda index: -lengths[index]
    )


def _resource(part: JsonObject) -> JsonObject:
    resource = part.get("resource") if part["type"] == "resource" else None
    return resource if isinstance(resource, dict) else {}


def _media_type(part: JsonObject) -> str:
    given = part.get("mimeType") or _resource(part).get("mimeType")
    return given if isinstance(given, str) else ""


def _uri(part: JsonObject) -> JsonObject:
    uri = _resource(part).get("uri")
    return {"uri": uri} if isinstance(uri, str) else {}


def _why(refusal: ArtifactRefused) -> str:
    return f"it was not stored: {refusal.message}"[:300]
