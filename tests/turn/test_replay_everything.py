"""A turn of everything at once, cut off at points of it and finished by the next host: MCP and HTTP results that are stored,
images, skills, memory, artifacts, a search for tools, an agent used as a tool, a compaction, the outputs folder."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import HTTP_CALLS_PATH
from pod_host.sandbox.outcomes import Completed
from pod_host.turn import Reported
from tests.turn.artifact_store import ArtifactStore
from tests.turn.double import AGENT, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed
from tests.turn.tool_gate_double import Server, tool

PNG = b"\x89PNG" * 300
SKILL = {"SKILL.md": b"---\nname: pdf\n---\n" + b"Do it. " * 2000, "x.txt": b"abc"}
POINTS = 210
STEPS = (
    calls(
        ("docs__search", {"query": "a"}),
        ("bash", {"command": "ls"}),
        ("order", {"what": 1}),
        ("load_skill", {"name": "pdf"}),
        ("memory", {"command": "view", "path": "/memories"}),
        ("save_artifact", {"content": "y" * 5000, "name": "n.md"}),
        ("helper", {"message": "Go."}),
    ),
    calls(
        ("write", {"path": "a", "content": "z" * 3000}),
        ("docs__search", {"query": "b"}),
        ("tool_search", {"query": "rare"}),
    ),
    calls(("docs__rare", {})),
    text("Done."),
)
HELPER = script(calls(("docs__search", {"query": "child"}), ("bash", {"command": "child"})), text("Helped."))


def model(call: JsonObject, effect_id: str) -> Json:
    if "/summary-" in effect_id:
        return text("A short summary.")
    if "HELPER" in str(call["prompt"][0]):
        return HELPER(call, effect_id)
    step = int(re.findall(r"step-(\d+)", effect_id)[0])
    usage = {"inputTokens": 6000 * step + (3000 if step > 1 else 0), "outputTokens": 5}  # full before the fourth
    return {**STEPS[step - 1], "usage": usage}


def answers(path: str, body: JsonObject) -> Json:
    if path == HTTP_CALLS_PATH:
        return {"ok": True, "result": {"kind": "completed", "output": {"large": ["k" * 300] * 200}}}
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    return {"ok": True, "result": {"content": [{"type": "text", "text": "r" * 60_000}, image]}}


def facts(snapshot: JsonObject) -> Json:
    def seen(listed: JsonObject) -> JsonObject:
        return {**listed, "enabled": True, "deferred": listed["name"] == "rare"}

    return {"servers": [{**server, "tools": list(map(seen, server["tools"]))} for server in snapshot["servers"]]}


def setting() -> tuple[Runtime, Sandbox]:
    hashes = {path: "sha256:" + hashlib.sha256(data).hexdigest() for path, data in SKILL.items()}
    skills = [{"name": "pdf", "description": "Reads.", "files": hashes}]
    servers = [{"name": "docs", "url": "http://docs/", "tools": {"rare": {"deferred": True}}}]
    helper = {"id": "helper", "instructions": "You are HELPER.", "skills": skills, "mcpServers": servers}
    runtime = Runtime(
        model,
        manifest={
            "id": AGENT,
            "instructions": "Be exact. " * 50,
            "tools": [{"name": "order", "http": {"url": "http://shop/"}}, {"name": "helper", "agent": helper}],
            "skills": skills,
            "mcpServers": servers,
        },
        limits={"recordEntryBytes": 65_536, "chunkBytes": 20_000},
        artifacts=ArtifactStore(chunk_bytes=20_000),
        files={hashes[path]: data for path, data in SKILL.items()},
    )
    runtime.artifacts.put(b"text " * 300, "t.txt")
    runtime.artifacts.put(PNG, "i.png", "image/png")
    runtime.tools.servers = {"docs": Server([[tool("search"), tool("rare")]], "Search first.")}
    runtime.tools.facts, runtime.tools.answers = facts, answers
    outputs = {"outputs/a": b"1" * 3000, "outputs/b": b"2"}
    sandbox = Sandbox(work=lambda tool, arguments: Completed({"stdout": "o" * 3000, "exitCode": 0}), files=outputs)
    return runtime, sandbox


def members() -> dict[str, Any]:
    named = [("text/plain", "af_1"), ("image/png", "af_2")]
    media = [
        {"type": "media", "mediaType": kind, "reference": {"artifactId": artifact, "version": 1}}
        for kind, artifact in named
    ]
    return {
        "message": {"content": [{"type": "text", "text": "Look."}, *media]},
        "memory": {"access": "read_write", "index": "- a — b\n" * 5},
        "model": {
            "provider": "p", "id": "m", "inputs": ["text", "image"], "contextWindow": 20_000, "maxOutputTokens": 1000
        },
    }  # fmt: skip


async def undisturbed() -> Runtime:
    runtime, sandbox = setting()
    sandbox.world = runtime.world
    assert await runtime.turn(sandbox, **members()).run() == Reported("completed")
    return runtime


def kept(runtime: Runtime) -> str:
    """The transcript; artifacts have their ids by the order in which they came."""
    return re.sub(r"\baf_\d+", "af", json.dumps(runtime.transcript))


async def test_the_undisturbed_turn_has_all_of_it() -> None:
    runtime = await undisturbed()
    assert POINTS * 3 // 4 < len(runtime.world.points) <= POINTS
    assert [entry["kind"] for entry in runtime.transcript][:2] == ["compaction", "input"]
    assert any("summary-threshold" in effect_id for effect_id in runtime.journal)
    assert sum(":tool:" in effect_id for effect_id in runtime.journal) == 13


@pytest.mark.parametrize(
    "at", [*((at,) for at in range(0, POINTS, 6)), *((at, at // 2) for at in range(9, POINTS, 20))]
)
async def test_cut_off_anywhere_it_ends_as_if_it_had_not_been(at: tuple[int, ...]) -> None:
    whole = await undisturbed()
    runtime, sandbox = setting()
    for point in at:
        if not runtime.outputs:
            await until_killed(runtime, sandbox, point, **members())
            runtime.artifacts.uploads.clear()  # they ended with the run
    if not runtime.outputs:
        assert await runtime.turn(sandbox, **members()).run() == Reported("completed")
    assert [method for method, _ in runtime.outputs] == ["turn.completed"]
    assert all(row.status == "completed" for row in runtime.journal.values())
    assert len(sandbox.started) == len({str(call) for call in sandbox.started}), "a command ran twice"
    assert len(runtime.tools.ran) == len(set(runtime.tools.ran)), "a tool ran twice"
    assert runtime.journal.keys() == whole.journal.keys()
    outcomes: list[Json] = [(row.outcome or {}).get("value") for row in runtime.journal.values()]
    if not any(isinstance(value, dict) and value.get("code") == "tool.interrupted" for value in outcomes):
        assert kept(runtime) == kept(whole)
