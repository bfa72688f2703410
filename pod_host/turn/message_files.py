"""Files that messages name, looked at as a segment begins (Harness API v5, sections 3 to 5): of a text the beginning, to be
shown in the prompt; of what the model reads otherwise its size. What is found goes into the `Reader`, so that projecting
entries stays a pure function: a version of an artifact never changes, so every host and every replay finds the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.contract.model_call import input_kind
from pod_host.contract.transcript import Entry
from pod_host.turn.artifacts import ArtifactRefused, Artifacts, Piece
from pod_host.turn.endings import Stopped, TurnFailure
from pod_host.turn.log import tell
from pod_host.turn.projection import FileFacts, Reader, file_key
from pod_host.turn.skill_files import FileCache
from pod_host.turn.stop import Stop


@dataclass(frozen=True, slots=True)
class MessageFiles:
    """``cache``: shared by the host's turns; a session's files are found by its own turns alone."""

    artifacts: Artifacts
    cache: FileCache
    stop: Stop
    session_id: str
    turn_id: str

    async def known_to(self, reader: Reader, entries: Iterable[Entry]) -> Reader:
        """``reader`` with the facts of all files that ``entries`` name. One that is not there, or fails each time, has a note
        in its place; a file of the turn's own message that fails is a TurnFailure. Raises Stopped too when the store stays
        out: what this segment showed its model before, or will show it when it runs again, cannot be known then, so the run
        is given back."""
        facts: dict[tuple[str, str], FileFacts] = {}
        for entry in entries:
            for part in _media(entry):
                key = file_key(part.get("reference"))
                wanted = _wanted(str(part.get("mediaType") or ""), reader)
                if key is None or wanted is None:
                    continue
                if key not in facts or (wanted and facts[key].text is None):
                    facts[key] = await self._facts(part, wanted, own=entry.get("turnId") == self.turn_id)
        return replace(reader, files=facts)

    async def _facts(self, part: JsonObject, most: int, *, own: bool) -> FileFacts:
        reference = part["reference"]
        artifact_id, version = reference["artifactId"], reference["version"]
        name = f"message:{most}:{encode([self.session_id, artifact_id, version]).decode()}"
        held = self.cache.get(name)
        if held is None:
            try:
                piece = await self._piece(artifact_id, version, most)
            except ArtifactRefused as refusal:
                tell(logging.WARNING, "message.file_unreadable", artifact=artifact_id, code=refusal.code)
                if own and refusal.code == "internal":
                    text = f"A file of the message, {artifact_id}, cannot be read now: {refusal.message}"
                    raise TurnFailure("input.file_unavailable", text) from refusal
                return FileFacts(found=False)
            is_file = piece.meta.kind == "file"
            held = encode([is_file, piece.meta.size, piece.eof]) + b"\n" + piece.data
            self.cache.put(name, held)
        head, _, data = held.partition(b"\n")
        is_file, size, eof = decode(head)
        return FileFacts(found=is_file, size=size, text=_text(data, whole=eof) if most else None)

    async def _piece(self, artifact_id: str, version: Json, most: int) -> Piece:
        """Read with patience: a store that is out comes back."""
        for wait in limits.STORE_WAIT_SECONDS:
            try:
                return await self.artifacts.read_all(artifact_id, version, most)
            except ArtifactRefused as refusal:
                if refusal.code != "unavailable":
                    raise
                tell(logging.WARNING, "message.store_out", artifact=artifact_id, why=refusal.message)
            await self.stop.race(partial(asyncio.sleep, wait))
        raise Stopped("connection.lost")


def _wanted(media_type: str, reader: Reader) -> int | None:
    """How many bytes of a file are looked at, 0 for its size alone; None: it is a note whatever it holds."""
    kind = input_kind(media_type)
    if kind == "text":
        return limits.INLINE_FILE_BYTES
    return 0 if reader.inputs and kind in reader.inputs else None


def _media(entry: Entry) -> list[JsonObject]:
    """An entry that is odd has none: what is to be said of it is for who reads it whole."""
    event: Json = entry.get("event") if entry.get("kind") == "input" else None
    content: Json = event.get("content") if isinstance(event, dict) else None
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") == "media"]


def _text(data: bytes, *, whole: bool) -> str | None:
    """The text that ``data`` begins, in whole characters; None when it is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as fault:
        if whole or fault.reason != "unexpected end of data":
            return None
        text = data[: fault.start].decode()
    return None if "\0" in text else text
