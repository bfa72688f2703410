"""Tool calls: what never becomes an effect, what order calls run in, what their results say (v5, sections 4, 5b, 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import HarnessTarget
from pod_host.contract.encoding import encode
from pod_host.errors import InputIssue, RuntimeRefusal, SandboxError, WorkerLost
from pod_host.sandbox.outcomes import Completed, Failed, Outcome
from pod_host.turn import Reported
from pod_host.turn.journal import Execution, Fate, Known
from pod_host.turn.loops import Loop
from pod_host.turn.toolset import Tool, ToolProvider, Toolset
from tests.turn.double import TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox


async def results_of(answer: JsonObject, sandbox: Sandbox, **members: Json) -> tuple[list[JsonObject], Runtime]:
    """The results of one step."""
    runtime = Runtime(script(answer, text("Done.")), **members)
    assert await runtime.turn(sandbox).run() == Reported("completed")
    return runtime.transcript[2]["results"], runtime


async def test_an_unknown_tool_is_answered_with_the_names_there_are_and_is_no_effect() -> None:
    results, runtime = await results_of(calls(("python", {})), Sandbox())
    assert results == [
        {
            "callId": "c0",
            "toolName": "python",
            "kind": "failed",
            "code": "tool.unknown",
            "message": "There is no tool named python. There are: bash, read, write, edit, grep, glob, read_artifact,"
            " save_artifact",
        }
    ]
    assert [key for key in runtime.journal if ":tool:" in key] == []


async def test_arguments_that_do_not_fit_are_answered_with_their_paths_and_are_no_effect() -> None:
    sandbox = Sandbox()
    results, runtime = await results_of(calls(("read", {"path": "", "limit": "5", "lines": 3})), sandbox)
    assert results[0]["code"] == "tool.invalid-input"
    assert results[0]["details"]["phase"] == "input"
    assert sorted(issue["path"] for issue in results[0]["details"]["issues"]) == [["limit"], ["lines"], ["path"]]
    assert "limit" in results[0]["message"]
    assert sandbox.started == []
    assert [key for key in runtime.journal if ":tool:" in key] == []


async def test_a_call_that_core_cannot_record_does_not_run_and_the_model_is_told() -> None:
    def intercept(method: str, params: JsonObject) -> None:
        if method == "effect.intent" and len(str(params)) > 5000:
            raise RuntimeRefusal("limit_exceeded", "recordEntryBytes is 4096")

    sandbox = Sandbox()
    large, small = ("write", {"path": "a", "content": "x" * 6000}), ("bash", {"command": "ls"})
    results, runtime = await results_of(calls(large, small), sandbox, intercept=intercept)
    assert (results[0]["kind"], results[0]["code"]) == ("failed", "tool.input-too-large")
    assert "recordEntryBytes is 4096" in results[0]["message"]
    assert results[1]["kind"] == "completed"
    assert sandbox.started == [small]
    assert [key for key in runtime.journal if ":tool:" in key] == [f"{TURN}:0:tool:step-1/1"]


@pytest.mark.parametrize("args", [None, "ls", ["ls"], 7])
async def test_arguments_that_are_no_object_are_answered_likewise(args: Json) -> None:
    results, runtime = await results_of(calls(("bash", args)), Sandbox())
    assert results[0]["code"] == "tool.invalid-input"
    assert results[0]["details"]["issues"][0]["path"] == []
    assert [key for key in runtime.journal if ":tool:" in key] == []


async def test_names_and_texts_that_are_not_unicode_are_shown_escaped() -> None:
    sandbox = Sandbox(work=lambda tool, arguments: Failed("sandbox.not_found", "No file at \udcff"))
    answer = calls(("bash", {"command": "x", "\ud83d": 1}), ("read", {"path": "a"}), ("\ud83d", {}))
    results, _ = await results_of(answer, sandbox)
    assert [result["code"] for result in results] == ["tool.invalid-input", "sandbox.not_found", "tool.unknown"]
    assert results[1]["message"] == "No file at \\udcff"


async def test_a_bug_whose_text_is_not_unicode_is_still_reported() -> None:
    def work(tool: str, arguments: JsonObject) -> Outcome:
        raise ValueError("\ud83d")

    runtime = Runtime(script(calls(("bash", {"command": "x"}))))
    assert await runtime.turn(Sandbox(work=work)).run() == Reported("failed")
    assert runtime.outputs[0][1]["thrown"]["message"] == "ValueError: \\ud83d"


async def test_a_worker_lost_with_an_odd_text_is_still_reported() -> None:
    def work(tool: str, arguments: JsonObject) -> Outcome:
        raise WorkerLost("\ud83d")

    results, _ = await results_of(calls(("bash", {"command": "x"})), Sandbox(work=work))
    assert results[0]["code"] == "tool.lost"


async def test_a_long_list_of_faults_is_cut() -> None:
    arguments = {f"member{n}" + "x" * 5000: n for n in range(100)}
    results, _ = await results_of(calls(("bash", arguments)), Sandbox())
    assert len(results[0]["details"]["issues"]) == 10
    assert len(str(results[0])) < 20_000


async def test_a_call_within_which_the_answer_was_cut_does_not_run() -> None:
    sandbox = Sandbox()
    answer = calls(("read", {"path": "a"}), ("bash", {"command": "rm -rf /tmp/bui"}), finish="length")
    results, _ = await results_of(answer, sandbox)
    assert [result.get("code") for result in results] == [None, "tool.cut-off"]
    assert [tool for tool, _ in sandbox.started] == ["read"]


async def test_a_call_that_was_whole_when_the_answer_was_cut_runs() -> None:
    sandbox = Sandbox()
    answer = calls(("read", {"path": "a"}), finish="length")
    answer["output"].append({"type": "text", "text": "and now I"})
    results, _ = await results_of(answer, sandbox)
    assert results[0]["kind"] == "completed"


async def test_call_ids_may_repeat_or_be_missing() -> None:
    answer = calls(*[("bash", {"command": str(n)}) for n in range(4)])
    for block, call_id in zip(answer["output"], ["same", "same", "", None], strict=True):
        block["id"] = call_id
    results, runtime = await results_of(answer, Sandbox())
    assert [result["callId"] for result in results] == ["same", "same", "call-2", "call-3"]
    assert [result["output"]["input"]["command"] for result in results] == ["0", "1", "2", "3"]
    assert sum(":tool:" in key for key in runtime.journal) == 4


async def test_calls_reach_the_sandbox_in_their_order_whichever_intent_is_answered_first() -> None:
    first_is_slow = asyncio.Event()

    def slow_first(method: str, params: JsonObject) -> object:
        if method == "effect.intent" and params["effect"]["effectId"].endswith("step-1/0"):
            return first_is_slow.wait()
        if method == "effect.intent" and params["effect"]["effectId"].endswith("step-1/2"):
            first_is_slow.set()
        return None

    sandbox = Sandbox()
    answer = calls(("write", {"path": "a", "content": "1"}), ("nonsense", {}), ("bash", {"command": "cat a"}))
    await results_of(answer, sandbox, intercept=slow_first)
    assert [tool for tool, _ in sandbox.started] == ["write", "bash"]


async def test_calls_of_a_step_run_beside_one_another() -> None:
    sandbox = Sandbox(held={"bash"})

    def work(tool: str, arguments: JsonObject) -> Outcome:
        if tool == "read":
            sandbox.released.set()  # bash ends only once read has run
        return Completed(tool)

    sandbox.work = work
    results, _ = await results_of(calls(("bash", {"command": "x"}), ("read", {"path": "a"})), sandbox)
    assert [result["output"] for result in results] == ["bash", "read"]


async def test_more_calls_than_run_in_one_step_are_refused_for_the_rest() -> None:
    sandbox = Sandbox()
    answer = calls(*[("bash", {"command": "x"})] * (limits.STEP_CALLS + 2))
    results, _ = await results_of(answer, sandbox)
    assert len(sandbox.started) == limits.STEP_CALLS
    assert [result.get("code") for result in results[-3:]] == [None, "tool.too-many", "tool.too-many"]


@pytest.mark.parametrize(("count", "most"), [(64, 16_384), (200, 32_768), (400, 65_536), (1000, 983_040)])
async def test_however_many_calls_a_step_has_its_results_fit_one_entry(count: int, most: int) -> None:
    """The double refuses the turn's output otherwise."""
    sandbox = Sandbox(work=lambda tool, arguments: Completed("x" * 5000))
    answer = calls(*[("bash", {"command": "l"})] * count)
    results, runtime = await results_of(answer, sandbox, limits={"recordEntryBytes": most})
    assert [result["callId"] for result in results] == [f"c{number}" for number in range(count)]
    assert results[0]["kind"] == "completed"
    assert len(encode(runtime.transcript[2])) < most


async def test_a_small_window_is_not_filled_by_one_result() -> None:
    runtime = Runtime(script(calls(("bash", {"command": "l"})), text("Done.")))
    sandbox = Sandbox(work=lambda tool, arguments: Completed({"stdout": "x" * 30_000}))
    model = {"provider": "p", "id": "m", "inputs": ["text"], "contextWindow": 8000, "maxOutputTokens": 1000}
    assert await runtime.turn(sandbox, model=model).run() == Reported("completed")
    (result,) = runtime.transcript[2]["results"]
    assert 5_000 < len(result["output"]["stdout"]) < 8000 * 4 // 3
    assert "characters omitted" in result["output"]["stdout"]


@pytest.mark.parametrize("count", [4, 12])
async def test_a_small_window_is_not_filled_by_many_results_and_small_ones_are_whole(count: int) -> None:
    """A step that does not fit would be summarized before the model has read it."""

    def work(tool: str, arguments: JsonObject) -> Outcome:
        return Completed({"stdout": "x" * (30_000 if arguments["command"] == "large" else 300)})

    step = [*[("bash", {"command": "large"})] * count, *[("bash", {"command": "small"})] * count]
    runtime = Runtime(script(calls(*step), text("Done.")))
    model = {"provider": "p", "id": "m", "inputs": ["text"], "contextWindow": 32_000, "maxOutputTokens": 4000}
    assert await runtime.turn(Sandbox(work=work), model=model).run() == Reported("completed")
    sizes = [len(result["output"]["stdout"]) for result in runtime.transcript[2]["results"]]
    assert sizes[0] > 20_000
    assert sizes[count:] == [300] * count
    assert len(encode(runtime.model_calls[1]["prompt"])) < 32_000 * 4 // 2
    assert not any("summary" in effect_id for effect_id in runtime.journal)


async def test_a_failed_outcome_reaches_the_model() -> None:
    sandbox = Sandbox(work=lambda tool, arguments: Failed("sandbox.not_found", "No file at /workspace/a"))
    results, _ = await results_of(calls(("read", {"path": "a"})), sandbox)
    assert (results[0]["code"], results[0]["message"]) == ("sandbox.not_found", "No file at /workspace/a")


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("bash", {"command": "x"}, "tool.lost"),
        ("write", {"path": "a", "content": ""}, "tool.lost"),
        ("edit", {"path": "a", "old_string": "x", "new_string": "y"}, "tool.lost"),
        ("read", {"path": "a"}, "sandbox.error"),
        ("grep", {"pattern": "a"}, "sandbox.error"),
        ("glob", {"pattern": "a"}, "sandbox.error"),
    ],
)
async def test_when_the_worker_dies_what_changes_something_has_an_unknown_fate(
    tool: str, arguments: JsonObject, code: str
) -> None:
    def work(tool: str, arguments: JsonObject) -> Outcome:
        raise WorkerLost("the worker died")

    results, runtime = await results_of(calls((tool, arguments)), Sandbox(work=work))
    assert results[0]["code"] == code
    assert ("error" in runtime.asked("effect.outcome")[1]) == (code == "tool.lost")


async def test_a_call_that_the_sandbox_gives_up_has_an_unknown_fate() -> None:
    def work(tool: str, arguments: JsonObject) -> Outcome:
        raise asyncio.CancelledError

    results, runtime = await results_of(calls(("bash", {"command": "x"})), Sandbox(work=work))
    assert results[0]["code"] == "tool.lost"
    assert "gave the call up" in runtime.asked("effect.outcome")[1]["error"]


async def test_a_call_that_the_sandbox_could_not_run_has_failed() -> None:
    def work(tool: str, arguments: JsonObject) -> Outcome:
        raise SandboxError("no worker could be started")

    results, _ = await results_of(calls(("bash", {"command": "x"})), Sandbox(work=work))
    assert (results[0]["code"], results[0]["message"]) == ("sandbox.error", "no worker could be started")


async def test_results_of_a_step_share_one_entry_whatever_their_size() -> None:
    sandbox = Sandbox(work=lambda tool, arguments: Completed("äöü\n" * 500_000))
    answer = calls(*[("read", {"path": str(n)}) for n in range(7)])
    results, _ = await results_of(answer, sandbox, limits={"recordEntryBytes": 60_000})
    for result in results:
        assert "characters omitted" in result["output"]
        assert len(result["output"].encode()) > 3000


async def test_an_outcome_that_core_finds_too_large_is_reported_again_and_smaller() -> None:
    sizes: list[int] = []

    def refuse(method: str, params: JsonObject) -> None:
        if method == "effect.outcome" and ":tool:" in params["effectId"]:
            sizes.append(len(str(params["value"])))
            if sizes[-1] > 3000:
                raise RuntimeRefusal("limit_exceeded", "recordEntryBytes is 3000")

    sandbox = Sandbox(work=lambda tool, arguments: Completed({"stdout": "x" * 10_000}))
    results, _ = await results_of(calls(("bash", {"command": "x"})), sandbox, intercept=refuse)
    assert sizes == sorted(sizes, reverse=True)
    assert "characters omitted" in results[0]["output"]["stdout"]


async def test_a_short_outcome_that_core_finds_too_large_fails_its_call_and_not_the_turn() -> None:
    reported: list[JsonObject] = []

    def refuse(method: str, params: JsonObject) -> None:
        if method == "effect.outcome" and ":tool:" in params["effectId"]:
            reported.append(params["value"])
            if len(reported) == 1:
                raise RuntimeRefusal("limit_exceeded", "recordEntryBytes is less than you think")

    sandbox = Sandbox(work=lambda tool, arguments: Completed({"exitCode": 0}))
    results, _ = await results_of(calls(("bash", {"command": "x"})), sandbox, intercept=refuse)
    assert [value["kind"] for value in reported] == ["completed", "failed"]
    assert results[0]["code"] == "tool.result-too-large"


async def test_an_outcome_that_no_size_pleases_fails_the_turn() -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "effect.outcome" and ":tool:" in params["effectId"]:
            raise RuntimeRefusal("limit_exceeded", "recordEntryBytes is 1")

    runtime = Runtime(script(calls(("bash", {"command": "x"}), ("bash", {"command": "y"}))), intercept=refuse)
    assert await runtime.turn(Sandbox()).run() == Reported("failed")
    assert runtime.outputs[0][1]["error"]["code"] == "limit_exceeded"


async def test_a_call_that_fails_the_turn_stops_those_beside_it() -> None:
    def refuse(method: str, params: JsonObject) -> None:
        if method == "effect.outcome" and params["effectId"].endswith("step-1/1"):
            raise RuntimeRefusal("effect_drift", "another request")

    sandbox = Sandbox(held={"bash"})
    runtime = Runtime(script(calls(("bash", {"command": "x"}), ("read", {"path": "a"}))), intercept=refuse)
    assert await runtime.turn(sandbox).run() == Reported("failed")
    assert runtime.outputs[0][1]["thrown"] == {"code": "effect_drift", "message": "another request"}
    assert sandbox.aborted == ["bash"]


@dataclass
class Local:
    """A provider of the test's own: calls note when they begin and end."""

    name: str
    parallel: bool
    log: list[str]

    def tools(self) -> Iterable[Tool]:
        yield Tool(
            name=self.name,
            description="",
            input_schema={"type": "object"},
            target=HarnessTarget(kind="harness"),
            parallel=self.parallel,
            check=self.check,
            run=self.run,
        )

    def check(self, arguments: JsonObject) -> Sequence[InputIssue]:
        return ()

    async def run(self, arguments: JsonObject, execution: Execution) -> Fate:
        self.log.append(f"+{self.name}")
        for _ in range(20):
            await asyncio.sleep(0)
        self.log.append(f"-{self.name}")
        return Known(self.name)


async def test_a_tool_that_runs_alone_waits_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    providers: list[ToolProvider] = [
        Local(name, parallel, log) for name, parallel in (("beside", True), ("alone", False))
    ]
    monkeypatch.setattr(Loop, "_providers", lambda loop, skills: iter(providers))
    answer = calls(("beside", {}), ("beside", {}), ("alone", {}), ("beside", {}), ("beside", {}))
    runtime = Runtime(script(answer, text("Done.")))
    assert await runtime.turn().run() == Reported("completed")
    assert log == [
        *["+beside", "+beside", "-beside", "-beside"],
        *["+alone", "-alone"],
        *["+beside", "+beside", "-beside", "-beside"],
    ]
    assert runtime.journal[f"{TURN}:0:tool:step-1/2"].intent["target"] == {"kind": "harness"}


def test_of_two_tools_with_one_name_the_first_stays(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (Local("same", parallel, []) for parallel in (True, False))
    tools = Toolset([first, second])
    kept = tools.get("same")
    assert tools.names == ["same"]
    assert kept is not None
    assert kept.parallel
    assert "tool.left_out" in caplog.text
