"""The Agent's memory: its tool, what is checked before a call is sent, and the index at the head of the session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.turn import Reported
from pod_host.turn.memory import MemoryTools, is_pinned
from tests.turn.double import TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox

MEMORY: JsonObject = {"access": "read_write", "index": "- /memories/a.md — about a\n- /memories/b.md"}
PINNED = "<memory-index>\n- /memories/a.md — about a\n- /memories/b.md\n</memory-index>"


def remembering(*answers: Json, memory: JsonObject = MEMORY, **members: Any) -> Runtime:
    return Runtime(script(*answers), members={"memory": memory}, **members)


async def result_of(name: str, arguments: Json, memory: JsonObject = MEMORY) -> tuple[JsonObject, list[JsonObject]]:
    """The result of one call, and the intents of tool effects."""
    runtime = remembering(calls((name, arguments)), text("Done."), memory=memory)
    assert await runtime.turn().run() == Reported("completed")
    (result,) = [result for entry in runtime.transcript for result in entry.get("results", [])]
    return result, [row.intent for row in runtime.journal.values() if row.intent["kind"] == "tool"]


GOOD: list[JsonObject] = [
    {"command": "view", "path": "/memories"},
    {"command": "view", "path": "/memories/"},
    {"command": "view", "path": "/memories/a.md", "view_range": [1, -1]},
    {"command": "create", "path": "/memories/a/b.md", "file_text": ""},
    {"command": "str_replace", "path": "/memories/a.md", "old_str": "x", "new_str": ""},
    {"command": "insert", "path": "/memories/a.md", "insert_line": 0, "insert_text": "x\n"},
    {"command": "delete", "path": "/memories/a.md"},
    {"command": "rename", "old_path": "/memories/a.md", "new_path": "/memories/b/a.md"},
]
BAD: list[tuple[JsonObject, str]] = [
    ({}, "command: one of view, create"),
    ({"command": "remember"}, "command: one of view, create"),
    ({"command": ["view"]}, "command: one of view, create"),
    ({"command": "view"}, "'path' is a required property"),
    ({"command": "view", "path": 7}, "path: 7 is not of type 'string'"),
    ({"command": "view", "path": "/etc/passwd"}, "path: a path under /memories is needed"),
    ({"command": "view", "path": "/memories2/a"}, "path: a path under"),
    ({"command": "view", "path": "memories/a"}, "path: a path under"),
    ({"command": "view", "path": "/memories/../etc"}, "without . and .."),
    ({"command": "view", "path": "/memories//a"}, "path: a path under"),
    ({"command": "view", "path": "/memories/a\nb"}, "path: a path under"),
    ({"command": "view", "path": "/memories/a", "view_range": [1]}, "view_range"),
    ({"command": "view", "path": "/memories/a", "file_text": "x"}, "'file_text' was unexpected"),
    ({"command": "create", "path": "/memories/a"}, "'file_text' is a required property"),
    ({"command": "create", "path": "/memories", "file_text": "x"}, "/memories itself is no memory"),
    ({"command": "str_replace", "path": "/memories/a", "old_str": "", "new_str": "x"}, "old_str"),
    ({"command": "insert", "path": "/memories/a", "insert_line": -1, "insert_text": "x"}, "insert_line"),
    ({"command": "insert", "path": "/memories/a", "insert_line": True, "insert_text": "x"}, "insert_line"),
    ({"command": "delete", "path": "/memories/"}, "/memories itself is no memory"),
    ({"command": "rename", "old_path": "/memories/a", "new_path": "/b"}, "new_path: a path under"),
]


@pytest.mark.parametrize("arguments", GOOD)
async def test_a_call_that_fits_is_cores_to_run(arguments: JsonObject) -> None:
    result, intents = await result_of("memory", arguments)
    assert result["output"] == "done by core"
    assert [(intent["target"], intent["input"]) for intent in intents] == [
        ({"kind": "runtime", "operation": "memory"}, arguments)
    ]


@pytest.mark.parametrize(("arguments", "said"), BAD)
async def test_a_call_that_does_not_fit_is_answered_and_is_no_effect(arguments: JsonObject, said: str) -> None:
    result, intents = await result_of("memory", arguments)
    assert result["code"] == "tool.invalid-input"
    assert said in result["message"]
    assert intents == []


@pytest.mark.parametrize("name", ["memory.create", "memory/create"])
async def test_a_command_in_the_name_is_the_command_and_the_name_stays_the_models(name: str) -> None:
    result, (intent,) = await result_of(name, {"path": "/memories/a", "file_text": "x"})
    assert result["toolName"] == intent["toolName"] == name
    assert intent["input"] == {"command": "create", "path": "/memories/a", "file_text": "x"}
    assert intent["target"] == {"kind": "runtime", "operation": "memory"}


@pytest.mark.parametrize("name", ["memory.forget", "memory:view", "memories"])
async def test_any_other_name_is_an_unknown_tool(name: str) -> None:
    result, intents = await result_of(name, {"path": "/memories/a"})
    assert (result["code"], intents) == ("tool.unknown", [])


@pytest.mark.parametrize("name", ["memory", "memory.delete"])
async def test_a_read_only_memory_is_viewed_and_not_changed(name: str) -> None:
    memory = {**MEMORY, "access": "read_only"}
    arguments = {"path": "/memories/a"} | ({"command": "delete"} if name == "memory" else {})
    result, intents = await result_of(name, arguments, memory)
    assert "read-only" in result["message"]
    assert intents == []
    (tool,) = MemoryTools(("view",)).tools()
    assert tool.input_schema["properties"]["command"] == {"enum": ["view"]}
    assert set(tool.input_schema["properties"]) == {"command", "path", "view_range"}


async def test_without_memory_there_is_no_tool_and_no_index() -> None:
    runtime = Runtime(script(calls(("memory", {"command": "view", "path": "/memories"})), text("Done.")))
    assert await runtime.turn().run() == Reported("completed")
    assert runtime.transcript[2]["results"][0]["code"] == "tool.unknown"
    assert [entry["kind"] for entry in runtime.transcript][:2] == ["input", "candidate"]


async def test_core_that_says_execute_is_answered_with_an_error() -> None:
    runtime = remembering(calls(("memory", GOOD[0])), text("Done."))
    served = runtime._serve

    def serve(method: str, params: JsonObject) -> JsonObject:
        answer = served(method, params)
        if method == "effect.intent" and params["effect"]["kind"] == "tool":
            row = runtime.journal[params["effect"]["effectId"]]
            row.status, row.outcome = "invoking", None
            return {"status": "execute"}
        return answer

    runtime._serve = serve  # type: ignore[method-assign]
    assert await runtime.turn().run() == Reported("completed")
    (told,) = [params for params in runtime.asked("effect.outcome") if ":tool:" in params["effectId"]]
    assert "value" not in told
    assert "runs this call itself" in told["error"]


async def test_calls_of_a_step_reach_core_in_their_order() -> None:
    """Core runs them as it takes their intents, and may take one while the answer to another is on its way."""
    done: list[str] = []

    def core(intent: JsonObject) -> Json:
        done.append(intent["input"]["command"])
        return {"kind": "completed", "output": "ok"}

    async def slow(params: JsonObject) -> None:
        for _ in range(10 if params["effect"]["effectId"].endswith("/0") else 0):
            await asyncio.sleep(0)

    runtime = remembering(
        calls(*[("memory", arguments) for arguments in GOOD]),
        text("Done."),
        core_tool=core,
        intercept=lambda method, params: slow(params) if method == "effect.intent" else None,
    )
    assert await runtime.turn().run() == Reported("completed")
    assert done == [arguments["command"] for arguments in GOOD]


async def test_a_memory_call_waits_for_no_command_that_runs_beside_it() -> None:
    sandbox = Sandbox(held={"bash"})

    def core(intent: JsonObject) -> Json:
        sandbox.released.set()
        return {"kind": "completed", "output": "ok"}

    runtime = remembering(calls(("bash", {"command": "x"}), ("memory", GOOD[0])), text("Done."), core_tool=core)
    assert await runtime.turn(sandbox).run() == Reported("completed")


# --- The index ---------------------------------------------------------------------------------------------------------


def prompts_of(runtime: Runtime) -> list[list[JsonObject]]:
    prompts: list[list[JsonObject]] = []
    runtime.at_gate = lambda call: prompts.append(call["prompt"])
    return prompts


def said(item: JsonObject) -> str:
    return str(item["content"][0]["text"])


async def test_the_index_is_pinned_once_at_the_head_and_stays_as_it_was() -> None:
    runtime = remembering(text("One."), text("Two."))
    prompts = prompts_of(runtime)
    await runtime.turn().run()
    runtime.members = {"memory": {**MEMORY, "index": "- /memories/new.md"}}
    await runtime.turn(turn_id="turn_2", message="Again").run()
    assert [said(item) for item in prompts[1][1:]] == [PINNED, "Hello", "One.", "Again"]
    assert prompts[1][1] == {"kind": "message", "role": "user", "content": [{"type": "text", "text": PINNED}]}
    assert prompts[1][: len(prompts[0])] == prompts[0]
    assert [is_pinned(entry) for entry in runtime.transcript].count(True) == 1


async def test_an_empty_and_a_cut_index_say_so() -> None:
    for memory, shown in (({"index": ""}, "(empty)"), ({"index": ["- /memories/a"], "truncated": True}, "left out")):
        runtime = remembering(text("One."), memory={"access": "read_only", **memory})
        prompts = prompts_of(runtime)
        await runtime.turn().run()
        assert shown in said(prompts[0][1])


async def test_a_session_without_its_index_gets_one_before_the_turns_message() -> None:
    runtime = Runtime(script(text("One."), text("Two.")))
    await runtime.turn().run()
    runtime.members = {"memory": MEMORY}
    prompts = prompts_of(runtime)
    await runtime.turn(turn_id="turn_2", message="Again").run()
    assert [said(item) for item in prompts[0][1:]] == ["Hello", "One.", PINNED, "Again"]


async def test_the_prompt_says_what_memory_can_do_and_then_what_the_agent_says_of_it() -> None:
    runtime = remembering(text("One."), memory={**MEMORY, "instructions": "Remember names."})
    prompts = prompts_of(runtime)
    await runtime.turn().run()
    system = said(prompts[0][0])
    assert system.startswith("Be exact.\n\n")
    assert "\n\n# Memory\n" in system
    assert system.endswith("Keep no secrets.\n\nRemember names.")
    read_only = remembering(text("One."), memory={**MEMORY, "access": "read_only"})
    prompts = prompts_of(read_only)
    await read_only.turn().run()
    assert "Keep" not in said(prompts[0][0])


async def test_a_persons_message_that_looks_like_the_index_is_not_taken_for_it() -> None:
    runtime = remembering(text("One."))
    await runtime.turn(message=PINNED).run()
    assert [is_pinned(entry) for entry in runtime.transcript[:2]] == [True, False]
    assert runtime.transcript[0]["turnId"] == TURN
