"""A leased run's input (`TurnStart`), with every member changed in turn."""

from __future__ import annotations

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.contract.turn_start import TurnStart
from pod_host.errors import ContractViolation
from tests.fuzz import hostile
from tests.fuzz.source import Source, pick

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_OF_ABC = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
MANIFEST: JsonObject = {
    "id": "coder",
    "instructions": "Be exact.",
    "model": {"id": "m", "controls": {"temperature": 0.5}},
    "tools": {
        "weather": {"description": "Weather", "inputSchema": _SCHEMA, "http": {"url": "https://example.test"}},
        "helper": {"description": "Helps", "agent": {"instructions": "Help.", "tools": {}}},
        "named": {"description": "Helps", "agent": "other"},
    },
    "agents": {"other": {"instructions": ["One.", "Two."], "outputSchema": _SCHEMA}},
    "skills": [
        {"name": "s", "description": "d", "files": {"SKILL.md": _OF_ABC, "scripts/run.py": _OF_ABC}},
    ],
    "outputSchema": None,
}
GOOD: JsonObject = {
    "type": "turn.start",
    "engine": "agent",
    "manifest": MANIFEST,
    "definition": {"name": "coder", "version": 1},
    "loop": {"maxSteps": 8, "compaction": {"threshold": 0.8}, "toolSearch": True},
    "memory": {"access": "read_write", "instructions": "Remember.", "index": ["one", "two"], "truncated": False},
    "checkpoint": {
        "sessionId": "ses_1",
        "turnId": "turn_1",
        "segment": 0,
        "manifestHash": "sha256:" + "ab" * 32,
        "input": {"content": [{"type": "text", "text": "Hi"}, {"type": "file", "artifactId": "a", "version": 1}]},
        "state": {"v": 1, "turnId": "turn_1", "steps": 1},
    },
    "outcomes": [
        {"effectId": "turn_1:0:model:step-1", "requestHash": "ab" * 32, "outcome": {"value": {"output": []}}},
    ],
    "transcript": {"cursor": 2},
    "mcp": {
        "servers": [
            {"agentId": None, "name": "github", "instructions": "Use it.", "tools": [
                {"name": "search", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
            ]},
        ]
    },
    "routing": {"rootManifest": {}, "sandbox": {"ownerId": "ses_1", "environmentId": "e", "environment": {"A": "b"}}},
    "agent": {"id": "coder", "kind": "pod", "sandbox": {"workspace": "/workspace"}, "selfWake": True},
    "options": {"fixtureModel": True},
    "trace": {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
    "limits": {"recordEntryBytes": 100_000, "modelCallBytes": 100_000, "toolAnswerBytes": 10_000, "chunkBytes": 1000},
    "model": {"provider": "p", "id": "m", "inputs": ["text", "image"], "contextWindow": 8000, "maxOutputTokens": 1000},
}  # fmt: skip


_SERVERS: JsonObject = {
    "mcpServers": [{"name": "github", "url": "https://example.test"}, {"name": "other", "url": "https://other.test"}]
}
_CHECKPOINT: JsonObject = {**GOOD["checkpoint"], "state": None}
_NEW: JsonObject = {**GOOD, "checkpoint": _CHECKPOINT, "outcomes": []}
_MESSAGES: list[Json] = [
    "Hi",
    {"text": "you", "metadata": {"a": 1}},
    {"content": [
        {"type": "media", "mediaType": kind, "reference": {"artifactId": kind[0], "version": 1, "name": "f"}}
        for kind in ("text/plain", "image/png", "video/mp4")
    ]},
]  # fmt: skip
STARTS: tuple[JsonObject, ...] = (
    GOOD,  # a segment that goes on
    _NEW,
    {**{name: _NEW[name] for name in _NEW if name != "mcp"}, "manifest": {**MANIFEST, **_SERVERS}},  # servers to be asked
    {  # an answer with a shape, to messages, in a window that is soon full
        **_NEW,
        "manifest": {**MANIFEST, "outputSchema": _SCHEMA},
        "model": {**GOOD["model"], "contextWindow": 1500, "maxOutputTokens": 100},
        "memory": {**GOOD["memory"], "access": "read_only"},
        "checkpoint": {**_CHECKPOINT, "input": {"kind": "messages", "messages": _MESSAGES}},
    },
    {  # more tools than are offered
        **_NEW,
        "mcp": {"servers": [{"name": "github", "tools": [
            {"name": f"tool_{number}", "description": "Finds", "inputSchema": {"type": "object"}} for number in range(70)
        ]}]},
        "limits": {**GOOD["limits"], "recordEntryBytes": 6000, "toolAnswerBytes": 3000},
    },
)  # fmt: skip


def read(source: Source, good: JsonObject = GOOD) -> TurnStart | None:
    """``good`` as it crossed, or None for one that the reader refuses."""
    value: Json
    try:
        value = decode(hostile.json_text(source, good))
        return TurnStart.read(value)
    except ContractViolation as refusal:
        str(refusal).encode()  # what is told of it can cross
        return None


def run(source: Source) -> None:
    start = read(source, pick(source, STARTS))
    if start is None:
        return
    assert start.checkpoint.session_id
    assert TurnStart.read(decode(encode(start.wire()))).checkpoint.turn_id == start.checkpoint.turn_id
