"""A host that is killed at any point around a call of core's, of the harness's own or of a held one: the turn ends as v5's
section 4 says for that target, and nothing that was completed runs again."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import tool_failure
from pod_host.turn import Reported
from tests.turn.double import AGENT, TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed

SKILL = {"SKILL.md": b"# How", "run.sh": b"echo ran"}
HASHES = {path: f"sha256:{hashlib.sha256(content).hexdigest()}" for path, content in SKILL.items()}
MANIFEST: JsonObject = {
    "id": AGENT,
    "skills": [{"name": "how", "description": "How.", "files": HASHES}],
    "outputSchema": {"type": "object", "required": ["done"]},
}
MEMBERS: JsonObject = {
    "memory": {"access": "read_write", "index": "- /memories/a"},
    "agent": {"id": AGENT, "kind": "pod", "sandbox": {"workspace": "/workspace"}, "selfWake": True},
}
ANSWERS = script(
    calls(
        ("memory", {"command": "create", "path": "/memories/b", "file_text": "x"}),
        ("load_skill", {"name": "how"}),
        ("bash", {"command": "sh run.sh"}),
        ("schedule_wake", {"in": "5m", "note": "Look."}),
        ("memory.view", {"path": "/memories"}),
    ),
    text("Done."),
    calls(("read_skill_resource", {"name": "how", "path": "run.sh"}), ("memory", {"command": "view"})),
    text('{"done": true}'),
)
POINTS = 64


class Core:
    """What core ran itself, how often each."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def __call__(self, intent: JsonObject) -> Json:
        self.ran[intent["effectId"]] += 1
        return {"kind": "completed", "output": f"{intent['target']['operation']} done"}


def turn_of_all() -> tuple[Runtime, Core]:
    core = Core()
    files = {HASHES[path]: content for path, content in SKILL.items()}
    return Runtime(ANSWERS, manifest=MANIFEST, members=MEMBERS, files=files, core_tool=core), core


async def test_the_undisturbed_turn_passes_fewer_points_than_are_tried() -> None:
    runtime, core = turn_of_all()
    assert await runtime.turn(Sandbox(world=runtime.world)).run() == Reported("completed")
    assert len(runtime.world.points) <= POINTS
    assert runtime.outputs[-1][1]["output"] == {"done": True}
    assert len(core.ran) == 3


@pytest.mark.parametrize("at", range(POINTS))
async def test_a_turn_cut_off_at_any_point_is_finished_by_the_next_host(at: int) -> None:
    runtime, core = turn_of_all()
    pod = Sandbox()
    await until_killed(runtime, pod, at)
    fresh = Sandbox(skills=dict(pod.skills))  # another host in the same pod: it finds what was mounted
    if not runtime.outputs:
        assert await runtime.turn(fresh).run() == Reported("completed")

    assert [method for method, _ in runtime.outputs] == ["turn.completed"]
    assert runtime.outputs[0][1]["output"] == {"done": True}
    assert set(core.ran.values()) == {1}, "core ran a call twice"
    assert len(pod.started) + len(fresh.started) <= 1, "a command ran twice"
    if fresh.started:
        assert list(fresh.skills.values()) == [SKILL]
    results = {result["callId"] + result["toolName"]: result for result in all_results(runtime)}
    assert len(results) == 7
    for name in ("c0memory", "c3schedule_wake", "c4memory.view"):
        assert results[name]["output"].endswith("done"), "what core runs is never interrupted"
    for name in ("c1load_skill", "c2bash", "c0read_skill_resource"):
        assert results[name].get("code") in (None, "tool.interrupted")
    assert results["c1memory"]["code"] == "tool.invalid-input"
    assert [entry["kind"] for entry in runtime.transcript].count("input") == 3  # index, message, correction


def all_results(runtime: Runtime) -> list[JsonObject]:
    return [result for entry in runtime.transcript for result in entry.get("results", [])]


async def test_a_cut_off_turn_asks_for_the_same_effects_as_an_undisturbed_one() -> None:
    undisturbed, _ = turn_of_all()
    await undisturbed.turn(Sandbox()).run()
    expected = {effect_id: row.request_hash for effect_id, row in undisturbed.journal.items()}
    for at in range(0, POINTS, 3):
        runtime, _ = turn_of_all()
        await until_killed(runtime, Sandbox(), at)
        if not runtime.outputs:
            await runtime.turn(Sandbox()).run()
        if not any(result.get("code") == "tool.interrupted" for result in all_results(runtime)):
            assert {effect_id: row.request_hash for effect_id, row in runtime.journal.items()} == expected


# --- Held calls --------------------------------------------------------------------------------------------------------

HELD = f"{TURN}:0:tool:step-1/1"
WAITING = script(calls(*[("bash", {"command": command}) for command in ("one", "rm", "two")]), text("Done."))


class Policy:
    """Core's tool policy: ``rm`` waits for a person, until there is an answer."""

    def __init__(self, status: str = "pending") -> None:
        self.status: str | None = status

    def __call__(self, intent: JsonObject) -> str | None:
        return self.status if intent.get("input") == {"command": "rm"} else None


def held_turn(status: str = "pending") -> tuple[Runtime, Policy]:
    policy = Policy(status)
    return Runtime(WAITING, hold=policy), policy


@pytest.mark.parametrize(("status", "ending"), [("pending", "waiting"), ("uncertain", "uncertain")])
async def test_a_held_call_lets_the_others_finish_and_then_the_segment_waits(status: str, ending: str) -> None:
    runtime, _ = held_turn(status)
    runtime.state = {"v": 1, "turnId": "earlier", "steps": 3}
    sandbox = Sandbox()
    assert await runtime.turn(sandbox).run() == Reported(ending)  # type: ignore[arg-type]
    assert [arguments["command"] for _, arguments in sandbox.started] == ["one", "two"]
    ((method, output),) = runtime.outputs
    assert method == "turn.waiting"
    assert (output["status"], output["effectIds"]) == (ending, [HELD])
    assert output["state"] == runtime.state
    assert "transcript" not in output
    others = [row for effect_id, row in runtime.journal.items() if effect_id != HELD]
    assert all(row.status == "completed" for row in others)


async def test_while_nobody_answered_a_replay_waits_again_and_runs_nothing() -> None:
    runtime, _ = held_turn()
    await runtime.turn(Sandbox()).run()
    asked, sandbox = list(runtime.gate_calls), Sandbox()
    assert await runtime.turn(sandbox).run() == Reported("waiting")
    assert (sandbox.started, runtime.gate_calls) == ([], asked)


@pytest.mark.parametrize("status", ["pending", "uncertain"])
async def test_an_approved_call_runs_in_the_replay_and_alone(status: str) -> None:
    runtime, policy = held_turn(status)
    await runtime.turn(Sandbox()).run()
    asked, sandbox = len(runtime.gate_calls), Sandbox()
    policy.status = None
    assert await runtime.turn(sandbox, type="approval.answer").run() == Reported("completed")
    assert sandbox.started == [("bash", {"command": "rm"})]
    assert len(runtime.gate_calls) == asked + 1
    commands = [result["output"]["input"]["command"] for result in all_results(runtime)]
    assert commands == ["one", "rm", "two"]


@pytest.mark.parametrize("status", ["pending", "uncertain"])
async def test_a_denied_call_tells_the_model_why_and_runs_nothing(status: str) -> None:
    runtime, policy = held_turn(status)
    await runtime.turn(Sandbox()).run()
    deny(runtime)
    policy.status = None
    sandbox, prompts = Sandbox(), prompts_of(runtime)
    assert await runtime.turn(sandbox, type="approval.answer").run() == Reported("completed")
    assert sandbox.started == []
    assert [result.get("code") for result in all_results(runtime)] == [None, "tool.denied", None]
    assert '"code":"tool.denied"' in prompts[-1][-2]["content"][0]["text"]
    assert "Not on my machine" in prompts[-1][-2]["content"][0]["text"]


@pytest.mark.parametrize("answer", ["approve", "deny"])
@pytest.mark.parametrize("at", range(0, 40, 1))
async def test_a_held_turn_that_is_killed_at_any_point_ends_as_the_person_said(at: int, answer: str) -> None:
    runtime, policy = held_turn()
    before, killed, after = Sandbox(), Sandbox(), Sandbox()
    await until_killed(runtime, before, at)
    if not runtime.outputs:
        assert await runtime.turn(killed).run() == Reported("waiting")
    if answer == "deny":
        deny(runtime)
    policy.status = None
    await until_killed(runtime, killed, at)
    if runtime.outputs[-1][0] == "turn.waiting":
        assert await runtime.turn(after).run() == Reported("completed")

    ran = Counter(arguments["command"] for pod in (before, killed, after) for _, arguments in pod.started)
    assert set(ran.values()) <= {1}, "a command ran twice"
    codes = [result.get("code") for result in all_results(runtime)]
    assert codes[1] in (("tool.denied",) if answer == "deny" else (None, "tool.interrupted"))
    assert ran["rm"] == 0 if answer == "deny" else ran["rm"] <= 1


def deny(runtime: Runtime) -> None:
    row = runtime.journal[HELD]
    row.status, row.outcome = "completed", {"value": tool_failure("tool.denied", "Not on my machine")}


def prompts_of(runtime: Runtime) -> list[list[JsonObject]]:
    prompts: list[list[JsonObject]] = []
    runtime.at_gate = lambda call: prompts.append(call["prompt"])
    return prompts


async def test_more_held_calls_are_reported_together() -> None:
    runtime = Runtime(WAITING, hold=lambda intent: "pending" if intent["kind"] == "tool" else None)
    assert await runtime.turn(Sandbox()).run() == Reported("waiting")
    assert runtime.outputs[0][1]["effectIds"] == [f"{TURN}:0:tool:step-1/{index}" for index in range(3)]
