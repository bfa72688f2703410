"""Transcript entries as prompt items (Harness API v5, sections 5 and 6): a pure function, since the call is hashed.

JSON inside text is canonical JSON: an entry that crossed the Runtime gives the same text, whatever became of its members'
order and its numbers' form on the way. No text part is empty or blank: providers refuse those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.model_call import input_kind
from pod_host.contract.transcript import Entry
from pod_host.contract.turn_start import TurnStart
from pod_host.turn.blocks import in_shape
from pod_host.turn.text import shortened
from pod_host.turn.window import Window

_PAYLOAD_MEMBERS = {
    "denied": ("kind", "reason"),
    "failed": ("kind", "code", "message", "retryable", "details"),
}
_EMPTY_MESSAGE = "(empty message)"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a version of a file. ``text``: its beginning, INLINE_FILE_BYTES at most, when it is text."""

    found: bool
    size: int = 0
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Whom entries are shown to. ``inputs``: the kinds of files that the model reads; None: not known, so every file is
    sent. ``file_bytes``: the largest file that it is shown, ``limits.modelFileBytes``. ``window``: None when not known.
    ``body_bytes``: of a call, ``limits.modelCallBytes``. ``files``: of messages, by `file_key`."""

    turn_id: str
    inputs: frozenset[str] | None = None
    file_bytes: int = limits.MODEL_FILE_BYTES
    window: Window | None = None
    body_bytes: int = limits.MODEL_CALL_BYTES
    files: Mapping[tuple[str, str], FileFacts] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, start: TurnStart) -> Reader:
        inputs = None if start.model is None else frozenset(start.model.inputs)
        most = start.limits
        window = Window.of_model(start.model)
        return cls(start.checkpoint.turn_id, inputs, most.model_file_bytes, window, most.model_call_bytes)

    @property
    def call_bytes(self) -> int:
        """What a call can hold, by the model's window too."""
        return min(self.body_bytes, self.window.tokens * limits.BYTES_PER_TOKEN if self.window else self.body_bytes)

    @property
    def inline_bytes(self) -> int:
        """What it is shown of a text file: a quarter of a call at most."""
        return min(self.call_bytes // 4, limits.INLINE_FILE_BYTES)

    @property
    def step_bytes(self) -> int:
        """What it is shown of one result, and of a step's results of MCP and HTTP tools: a third of a call at most."""
        return min(self.call_bytes // 3, limits.STEP_RESULT_BYTES)

    @property
    def results_bytes(self) -> int:
        """What it is shown of all results of a step: more of them would be summarized before it has read them."""
        return self.call_bytes * 2 // 5

    @property
    def message_bytes(self) -> int:
        """What it is shown of all text files of a message together: half of a call at most."""
        return min(self.call_bytes // 2, limits.INLINE_FILES_BYTES)

    def facts(self, reference: Json) -> FileFacts | None:
        key = file_key(reference)
        return self.files.get(key) if key else None

    def reads(self, media_type: str, reference: Json) -> bool:
        """Whether a file can go to the model as it is. Its size is known where it was looked at, or where its
        reference names it."""
        kind = input_kind(media_type)
        facts = self.facts(reference)
        if facts is not None and not facts.found:
            return False
        named = reference.get("size") if isinstance(reference, dict) else None
        size = facts.size if facts else named
        if kind == "text" or not isinstance(reference, dict) or (isinstance(size, int) and size > self.file_bytes):
            return False
        return self.inputs is None or kind in self.inputs


def prompt_items(entry: Entry, reader: Reader, *, aged: bool = False) -> list[JsonObject]:
    """The items of one entry, as they are sent for ``reader``. ``aged``: tool results in their short form."""
    kind = entry.get("kind")
    if kind == "input":
        return _input(entry.get("event") or {}, reader)
    if kind == "candidate":
        return _candidate(entry, current=entry.get("turnId") == reader.turn_id)
    if kind == "tool-results":
        return [_tool_result(result, reader, aged=aged) for result in entry.get("results") or []]
    if kind == "compaction":
        text = (
            "<summary>\nOf the earlier parts of this conversation, which no longer fit:\n\n"
            f"{entry.get('summary', '')}\n</summary>"
        )
        return [user_text(text)]
    return []  # final, and what a later release may write: nothing for the model


def depends_on_turn(entry: Entry) -> bool:
    """Whether the entry's items differ between its own turn and later ones."""
    if entry.get("kind") != "candidate":
        return False
    return any(block["type"] == "reasoning" and _only_its_turn(block) for block in answer_blocks(entry))


def answer_blocks(entry: Entry) -> list[JsonObject]:
    """The blocks of a model's answer that are in their shape; of another entry none."""
    output = (entry.get("candidate") or {}).get("output")
    blocks = output if isinstance(output, list) else []
    return [shaped for block in blocks if (shaped := in_shape(block))]


def holds_files(entry: Entry) -> bool:
    """Whether the entry's items depend on which files a model reads."""
    if entry.get("kind") == "input":
        parts = (entry.get("event") or {}).get("content")
        return isinstance(parts, list) and any(part.get("type") == "media" for part in parts)
    return any(result.get("files") for result in entry.get("results") or [])


def file_key(reference: Json) -> tuple[str, str] | None:
    """What tells versions of files apart; None for what names none: only a version stays as it is."""
    if not isinstance(reference, dict):
        return None
    artifact_id, version = reference.get("artifactId"), reference.get("version")
    if not isinstance(artifact_id, str) or not isinstance(version, int | str) or isinstance(version, bool):
        return None
    return artifact_id, str(version)


def file_note(media_type: str, reference: Json, why: str) -> str:
    """What stands in a file's place: its name, type and artifact, and why it is not shown."""
    named = reference if isinstance(reference, dict) else {}
    facts = [media_type or "unknown type"]
    if "artifactId" in named:
        facts.append(f"artifact {named['artifactId']}")
    if "version" in named:
        facts.append(f"version {named['version']}")
    return f"[File {named.get('name') or 'without a name'} ({', '.join(facts)}): {why}]"


def json_text(value: Json) -> str:
    """``value`` as canonical JSON text."""
    return canonical(value).decode()


def instructions_text(text: str) -> JsonObject:
    """The item of a system text."""
    return {"kind": "instructions", "role": "system", "content": [_text(text)]}


def user_text(text: str) -> JsonObject:
    """The item of a message that is one text."""
    return _message("user", [_text(text)])


def _input(event: JsonObject, reader: Reader) -> list[JsonObject]:
    if event.get("kind") in ("approve", "respond"):
        return []
    parts = event.get("content")
    if not isinstance(parts, list):
        parts = [_text(str(event.get("text", "")))]
    shown: list[JsonObject] = []
    room = reader.message_bytes
    for part in parts:
        facts = reader.facts(part.get("reference")) if part.get("type") == "media" else None
        if facts is not None and facts.text is not None and facts.found:
            text, used = _inlined(part, facts, min(room, reader.inline_bytes))
            shown.append(_text(text))
            room -= used
        elif part.get("type") == "media":
            shown.append(_file(part, reader))
        elif part.get("type") != "text" or _visible(part):
            shown.append(part)
    return [_message("user", shown or [_text(_EMPTY_MESSAGE)])]


def _inlined(part: JsonObject, facts: FileFacts, most: int) -> tuple[str, int]:
    """A text file with its content, as much of it as ``most`` bytes hold, and how many it takes."""
    data = (facts.text or "").encode()
    text = data[:most].decode(errors="ignore")
    used = len(text.encode())
    media_type, reference = str(part.get("mediaType") or ""), part.get("reference")
    if used == 0 and facts.size > 0:
        return file_note(media_type, reference, "it is not shown here; read_artifact reads it"), 0
    end = (
        "its end"
        if used == facts.size
        else f"{used} of {facts.size} bytes are shown; read_artifact with offset {used} reads on"
    )
    return f"{file_note(media_type, reference, 'its text')}\n{text}\n{file_note(media_type, reference, end)}", used


def _candidate(entry: Entry, *, current: bool) -> list[JsonObject]:
    parts = [part for block in answer_blocks(entry) if (part := _part(block, current=current))]
    return [{**_message("assistant", parts), **_producer(entry["candidate"])}] if parts else []


def _producer(candidate: JsonObject) -> JsonObject:
    """Which model answered, where the answer says it in the shape that a prompt takes."""
    extras = (candidate.get("evidence") or {}).get("extras")
    producer = extras.get("producer") if isinstance(extras, dict) else None
    if not isinstance(producer, dict):
        return {}
    named = {name: producer[name] for name in ("provider", "api", "model") if isinstance(producer.get(name), str)}
    return {"producer": named} if {"provider", "model"} <= named.keys() else {}


def _part(block: JsonObject, *, current: bool) -> JsonObject | None:
    """``block``: in its shape."""
    match block["type"]:
        case "text":
            return _with_metadata(_text(block["text"]), block) if _visible(block) else None
        case "json":
            return _text(json_text(block["value"]))
        case "reasoning":
            if not block.get("providerMetadata") or (_only_its_turn(block) and not current):
                return None
            return _with_metadata({"type": "reasoning", "text": block["text"]}, block)
        case _:
            call = {"type": "tool-call", "id": block["id"], "name": block["name"], "args": block["args"]}
            return _with_metadata(call, block)


def _tool_result(result: JsonObject, reader: Reader, *, aged: bool) -> JsonObject:
    status = result["kind"]
    members = _PAYLOAD_MEMBERS.get(status)
    payload = result.get("output") if members is None else {name: result[name] for name in members if name in result}
    text = json_text(payload)
    return {
        "kind": "tool-result",
        "toolCallId": result["callId"],
        "toolName": result["toolName"],
        "status": status,
        "content": [
            _text(shortened(text, limits.AGED_CHARACTERS) if aged else text),
            *(_file(file, reader, aged=aged) for file in result.get("files") or []),
        ],
    }


def _file(part: JsonObject, reader: Reader, *, aged: bool = False) -> JsonObject:
    media_type, reference = str(part.get("mediaType") or ""), part.get("reference")
    if aged:
        return _text(file_note(media_type, reference, "shown earlier, left out here"))
    if not reader.reads(media_type, reference):
        return _text(file_note(media_type, reference, "its content cannot be shown to you"))
    return {"type": "media", "mediaType": media_type, "reference": reference}


def _only_its_turn(block: JsonObject) -> bool:
    metadata = block.get("providerMetadata")
    return isinstance(metadata, dict) and metadata.get("replay") == "turn"


def _visible(block: JsonObject) -> bool:
    text = block.get("text")
    return isinstance(text, str) and bool(text.strip())


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _message(role: str, content: list[JsonObject]) -> JsonObject:
    return {"kind": "message", "role": role, "content": content}


def _with_metadata(part: JsonObject, block: JsonObject) -> JsonObject:
    metadata = block.get("providerMetadata")
    return part if metadata is None else {**part, "providerMetadata": metadata}
