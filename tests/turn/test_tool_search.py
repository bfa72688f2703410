"""tool_search: what is deferred, what a search finds, and that what was found stays offered, on a replay too."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.turn import Reported
from pod_host.turn.http_tools import HttpTools
from pod_host.turn.state import state_of
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.tool_search import with_search
from pod_host.turn.toolset import Toolset
from tests.turn.double import AGENT, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_mcp_tools import facts, runtime_of
from tests.turn.tool_gate_double import tool

MAIL = [
    tool("send_message", description="Sends a mail to somebody."),
    tool("listFolders", description="Lists folders."),
    tool(
        "archive",
        description="Moves a message to the archive.",
        inputSchema={"type": "object", "properties": {"messageId": {"type": "string"}}},
    ),
]
DEFERRED = facts(*({**one, "deferred": True} for one in MAIL), name="mail")


def search(query: str, **more: Any) -> JsonObject:
    return calls(("tool_search", {"query": query, **more}))


async def run(runtime: Runtime, **members: Any) -> None:
    assert await runtime.turn(**members).run() == Reported("completed")


def names(runtime: Runtime, call: int) -> list[str]:
    return [one["name"] for one in runtime.model_calls[call]["tools"] if one["name"][:4] in ("mail", "many", "tool")]


async def found(query: str, mcp: JsonObject = DEFERRED, **more: Any) -> list[str]:
    runtime = runtime_of(mcp, search(query, **more), text("Done."))
    await run(runtime)
    return [one["name"] for one in runtime.transcript[2]["results"][0]["output"]["tools"]]


async def test_without_deferred_tools_there_is_no_search() -> None:
    runtime = runtime_of(facts(*MAIL, name="mail"))
    await run(runtime)
    assert names(runtime, 0) == ["mail__send_message", "mail__listFolders", "mail__archive"]


async def test_deferred_tools_are_not_offered_until_they_are_found_and_then_at_the_end() -> None:
    runtime = runtime_of(DEFERRED, search("send a mail", limit=1), calls(("mail__send_message", {})), text("Done."))
    await run(runtime)
    assert names(runtime, 0) == ["tool_search"]
    assert names(runtime, 1) == names(runtime, 2) == ["tool_search", "mail__send_message"]
    shown = next(one for one in runtime.model_calls[0]["tools"] if one["name"] == "tool_search")
    assert "3, of mail." in shown["description"]
    assert runtime.journal[f"{runtime.transcript[0]['turnId']}:0:tool:step-1/0"].intent["target"] == {"kind": "harness"}
    assert runtime.transcript[4]["results"][0]["output"] == "done"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("send message", ["mail__send_message", "mail__archive"]),
        ("mail__archive", ["mail__archive", "mail__send_message", "mail__listFolders"]),
        ("folder", ["mail__listFolders"]),
        ("SENDING", ["mail__send_message"]),
        ("id", ["mail__archive"]),
        ("weather", []),
        ("!", []),
    ],
)
async def test_a_search_finds_by_words_of_names_descriptions_and_parameters(query: str, expected: list[str]) -> None:
    assert await found(query) == expected


async def test_a_search_that_finds_nothing_says_what_there_is() -> None:
    runtime = runtime_of(DEFERRED, search("weather"), text("Done."))
    await run(runtime)
    output = runtime.transcript[2]["results"][0]["output"]
    assert output == {
        "tools": [],
        "matches": 0,
        "note": "No tool matches. There are: mail__send_message, mail__listFolders, mail__archive",
    }
    assert names(runtime, 1) == ["tool_search"]


async def test_a_search_that_does_not_fit_its_schema_is_no_effect() -> None:
    runtime = runtime_of(DEFERRED, calls(("tool_search", {"query": "", "limit": 0})), text("Done."))
    await run(runtime)
    assert runtime.transcript[2]["results"][0]["code"] == "tool.invalid-input"


async def test_a_search_shows_eight_and_at_most_twenty() -> None:
    many = facts(*(tool(f"mail{n}", deferred=True) for n in range(30)), name="mail")
    assert len(await found("mail", many)) == limits.SEARCH_RESULTS
    assert len(await found("mail", many, limit=20)) == 20


async def test_more_tools_than_a_model_is_offered_are_deferred_from_the_first_beyond() -> None:
    runtime = runtime_of(facts(*(tool(f"t{n:03}") for n in range(100)), name="many"))
    await run(runtime, sandbox=Sandbox())
    offered = [one["name"] for one in runtime.model_calls[0]["tools"]]
    assert len(offered) == limits.OFFERED_TOOLS
    assert offered[-1] == "tool_search"
    shown = [name for name in offered if name.startswith("many")]
    assert shown == [f"many__t{n:03}" for n in range(len(shown))]


async def test_exactly_as_many_as_are_offered_need_no_search() -> None:
    runtime = runtime_of(facts(tool("t"), name="many"))
    await run(runtime)
    others = len(runtime.model_calls[0]["tools"]) - 1
    full = runtime_of(facts(*(tool(f"t{n}") for n in range(limits.OFFERED_TOOLS - others)), name="many"))
    await run(full)
    assert len(full.model_calls[0]["tools"]) == limits.OFFERED_TOOLS
    assert "tool_search" not in names(full, 0)


async def test_what_was_found_is_offered_in_later_turns() -> None:
    runtime = runtime_of(DEFERRED, search("folders"), text("Done."), text("Again."))
    await run(runtime)
    assert runtime.state["found"] == ["mail__listFolders"]
    await run(runtime, turn_id="turn_2")
    assert names(runtime, 2) == ["tool_search", "mail__listFolders"]


async def test_what_was_found_is_offered_still_when_a_compaction_has_taken_the_search_away() -> None:
    runtime = runtime_of(DEFERRED, text("Hello."))
    runtime.state = state_of("earlier", 3, ["mail__archive", "mail__gone"])
    await run(runtime)
    assert names(runtime, 0) == ["tool_search", "mail__archive"]


async def test_the_state_of_another_harness_leaves_it_to_the_transcript() -> None:
    runtime = runtime_of(DEFERRED, search("folders"), text("Done."), text("Again."))
    await run(runtime)
    runtime.state = {"of": "another harness"}
    await run(runtime, turn_id="turn_2")
    assert names(runtime, 2) == ["tool_search", "mail__listFolders"]


async def test_of_many_found_the_first_are_offered_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOUND_TOOLS", 2)
    answers = [search("send"), search("folders"), search("archive"), text("Done."), text("Again.")]
    runtime = runtime_of(DEFERRED, *answers)
    await run(runtime)
    assert names(runtime, 3) == ["tool_search", "mail__listFolders", "mail__archive"]
    await run(runtime, turn_id="turn_2")
    assert names(runtime, 4) == names(runtime, 3)


async def test_a_tool_that_is_called_without_having_been_found_runs() -> None:
    """A model may know it from a part of the conversation that was summarized."""
    runtime = runtime_of(DEFERRED, calls(("mail__archive", {})), text("Done."))
    await run(runtime)
    assert runtime.transcript[2]["results"][0]["output"] == "done"


async def test_a_declared_tool_of_the_same_name_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    manifest = {"id": AGENT, "tools": [{"name": "tool_search", "http": {"url": "http://x/"}}]}
    runtime = Runtime(script(search("folders"), text("Done.")), manifest=manifest)
    runtime.members = {"mcp": DEFERRED}
    await run(runtime)
    assert names(runtime, 1) == ["tool_search", "mail__listFolders"]
    assert "tool.left_out" in caplog.text


def test_http_tools_beyond_the_first_are_found_by_search_too() -> None:
    schema = {"type": "object", "properties": {}}
    declared = [{"name": f"tool_{n}", "inputSchema": schema, "http": {"url": "http://x"}} for n in range(70)]
    tools = with_search(Toolset([HttpTools({"tools": declared}, "turn", cast(ToolGate, None), None)]), None, [], 10**6)
    assert len(tools.names) == limits.OFFERED_TOOLS
    assert tools.names[-1] == "tool_search"
    assert tools.get("tool_69") is not None
    tools.find(["tool_69"])
    assert "tool_69" in tools.names


# --- Definitions that would fill a call --------------------------------------------------------------------------------


def described(name: str, size: int) -> JsonObject:
    return tool(name, inputSchema={"type": "object", "description": "x" * size})


@pytest.mark.parametrize("members", [{"limits": {"modelCallBytes": 400_000}}, {"model": {"contextWindow": 100_000}}])
async def test_tools_whose_definitions_would_fill_a_call_are_found_by_search(members: JsonObject) -> None:
    listed = [*(described(f"t{n}", 30_000) for n in range(5)), described("wanted", 30_000)]
    runtime = runtime_of(facts(*listed, name="many"), search("wanted"), text("Done."))
    runtime.limits = members.get("limits", {})
    model = {"provider": "p", "id": "m", "inputs": ["text"], **members.get("model", {})}
    await run(runtime, model=model)
    assert names(runtime, 0) == ["many__t0", "many__t1", "many__t2", "tool_search"]
    assert names(runtime, 1) == [*names(runtime, 0), "many__wanted"]


async def test_a_small_tool_is_offered_though_a_large_one_stands_before_it() -> None:
    runtime = runtime_of(facts(described("large", 9_000), described("huge", 9_000), tool("small"), name="many"))
    runtime.limits = {"modelCallBytes": 60_000}
    await run(runtime)
    assert names(runtime, 0) == ["many__large", "many__small", "tool_search"]


async def test_of_found_tools_that_would_fill_a_call_the_first_are_offered_no_longer() -> None:
    listed = [{**described(name, 9_000), "deferred": True} for name in ("first", "second", "third")]
    runtime = runtime_of(facts(*listed, name="many"), search("first"), search("second"), search("third"), text("Done."))
    runtime.limits = {"modelCallBytes": 80_000}
    await run(runtime)
    assert names(runtime, 3) == ["tool_search", "many__second", "many__third"]


async def test_a_tool_that_no_call_has_room_for_is_left_out_and_the_log_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = runtime_of(facts(described("huge", 200_000), tool("small"), name="many"))
    runtime.limits = {"modelCallBytes": 400_000}
    await run(runtime)
    assert names(runtime, 0) == ["many__small"]
    (told,) = [record for record in caplog.records if record.getMessage() == "tool.left_out"]
    assert told.fields["tool"] == "many__huge"  # type: ignore[attr-defined]
    assert "room for 100000" in told.fields["why"]  # type: ignore[attr-defined]
