"""Compaction: what is summarized and what stays, when, and that a turn cut off in it compacts the same again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.errors import RuntimeRefusal
from pod_host.sandbox.outcomes import Completed
from pod_host.turn import Released, Reported, TranscriptCache
from pod_host.turn.compaction import cut
from pod_host.turn.memory import pinned_entries
from tests.turn.double import TURN, Model, Runtime, World, calls, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_replay import until_killed

WINDOW = 4000
MODEL: JsonObject = {"provider": "p", "id": "m", "inputs": ["text"], "contextWindow": WINDOW, "maxOutputTokens": 500}
OVERFLOW: JsonObject = {"kind": "failed", "code": "context_overflow", "message": "too long", "retryable": False}
PAGE = "lorem ipsum " * 80  # about 240 tokens


def is_summary(call: JsonObject) -> bool:
    return str(call["prompt"][0]["content"][0]["text"]).startswith("You write the summary")


def said(call: JsonObject) -> str:
    """All texts of a call's prompt."""
    return "\n".join(part.get("text", "") for item in call["prompt"] for part in item["content"])


def spending(steps: int, each: int = 1000, summary: Callable[[JsonObject], Json] = lambda call: text("Sum.")) -> Model:
    """A model that reads a page a step, and counts ``each`` tokens more each time, until it is done."""

    def model(call: JsonObject, effect_id: str) -> Json:
        if is_summary(call):
            assert call["tools"] == []
            assert call["model"]["controls"]["maxOutputTokens"] in (400, limits.ANSWER_TOKENS * 8 // 10)
            return summary(call)
        step = int(effect_id.split("step-")[1].split("~")[0])
        results = sum(item["kind"] == "tool-result" for item in call["prompt"])
        usage = {"usage": {"totalTokens": each * (results + 1)}}
        if step > steps:
            return {**text("Done."), **usage}
        return {**calls(("bash", {"command": f"page {step}"})), **usage}

    return model


def pages() -> Sandbox:
    return Sandbox(work=lambda tool, arguments: Completed({"command": arguments["command"], "stdout": PAGE}))


def kinds(runtime: Runtime) -> list[str]:
    return [entry["kind"] for entry in runtime.transcript]


# --- Where it is cut -----------------------------------------------------------------------------------------------------


def entry(kind: str, turn_id: str = "t", **members: Json) -> JsonObject:
    return {"kind": kind, "turnId": turn_id, **members}


steps = st.lists(st.sampled_from(["answer", "work", "input"]), max_size=12)


def conversation(turns: list[list[str]]) -> list[JsonObject]:
    entries = []
    for number, parts in enumerate(turns):
        turn_id = f"t{number}"
        entries.append(entry("input", turn_id, event={"text": "x"}))
        for part in parts:
            entries.append(entry("input" if part == "input" else "candidate", turn_id))
            if part == "work":
                entries.append(entry("tool-results", turn_id))
            elif part == "answer":
                entries.append(entry("final", turn_id))
    return entries


@given(st.lists(steps, min_size=1, max_size=4), st.data(), st.booleans())
def test_a_cut_is_safe_wherever_it_falls(turns: list[list[str]], data: st.DataObject, compacted: bool) -> None:
    entries = [entry("compaction", summary="S"), *conversation(turns)] if compacted else conversation(turns)
    sizes = data.draw(st.lists(st.integers(0, 50), min_size=len(entries), max_size=len(entries)))
    tail, step = data.draw(st.integers(0, 300)), data.draw(st.integers(0, 100))
    current = f"t{len(turns) - 1}"
    found = cut(entries, sizes, current, tail=tail, step=step)
    if found is None:
        return
    assert sorted(found.summarized + found.kept) == list(range(compacted, len(entries)))
    own = [index for index, it in enumerate(entries) if it["kind"] == "input" and it["turnId"] == current]
    assert set(own) <= set(found.kept)
    rest = [index for index in found.kept if index not in own]
    assert rest == [index for index in range(min(rest, default=0), len(entries)) if index in rest]
    for index in found.kept:
        if entries[index]["kind"] == "tool-results":
            assert index - 1 in found.kept, "a result never stands without its call"
    if rest:
        assert entries[rest[0]]["kind"] in ("input", "candidate")
    assert found.tokens == sum(sizes[index] for index in found.summarized)


def test_the_last_step_stays_though_the_tail_is_small() -> None:
    entries = [
        entry("input", "old"),
        entry("candidate"),
        entry("tool-results"),
        entry("candidate"),
        entry("tool-results"),
    ]
    sizes = [10, 10, 10, 10, 60]
    kept = [cut(entries, sizes, "t", tail=20, step=step) for step in (70, 60)]
    assert [found.kept for found in kept if found] == [[3, 4], []]


# --- When it is due ------------------------------------------------------------------------------------------------------


async def test_a_full_window_is_compacted_before_the_next_call() -> None:
    summaries: list[JsonObject] = []
    prompts: dict[str, JsonObject] = {}

    def note(call: JsonObject) -> Json:
        summaries.append(call)
        return text("They read pages.")

    model = spending(4, summary=note)

    def noted(call: JsonObject, effect_id: str) -> Json:
        prompts[effect_id] = call
        return model(call, effect_id)

    runtime = Runtime(noted)
    runtime.transcript = [entry("input", "turn_0", event={"kind": "user-message", "text": "An old wish."})]
    assert await runtime.turn(pages(), model=MODEL, message="Read the pages.").run() == Reported("completed")
    [summary] = summaries
    assert "User:\nAn old wish." in said(summary)
    assert "Read the pages." not in said(summary), "the turn's own message stays as it is"
    assert kinds(runtime)[:3] == ["compaction", "input", "candidate"]
    effect = f"{TURN}:0:model:step-5/summary-threshold-1"
    assert runtime.journal[effect].intent["purpose"] == "summary"
    [output] = [out for _, out in runtime.outputs]
    assert output["transcript"][0]["kind"] == "compaction"
    facts = output["transcript"][0]["compaction"]
    assert facts["trigger"] == "threshold"
    assert facts["summaryEffectIds"] == [effect]
    assert facts["tokensBefore"] > WINDOW - 500 > facts["tokensAfter"]
    first = runtime.transcript[0]
    assert (first["stepId"], first["summary"]) == (f"{TURN}.step-5", "They read pages.")
    assert {name: first[name] for name in ("trigger", "tokensBefore", "tokensAfter")} == {
        name: facts[name] for name in ("trigger", "tokensBefore", "tokensAfter")
    }
    after = prompts[f"{TURN}:0:model:step-5"]["prompt"]
    assert "\n\nThey read pages.\n</summary>" in after[1]["content"][0]["text"]
    assert after[2]["content"][0]["text"] == "Read the pages."


async def test_a_window_that_nobody_knows_is_never_full() -> None:
    runtime = Runtime(spending(6))
    assert await runtime.turn(pages()).run() == Reported("completed")
    assert "compaction" not in kinds(runtime)


async def test_the_window_that_an_answer_names_counts_where_the_turn_names_none() -> None:
    inner = spending(4)

    def model(call: JsonObject, effect_id: str) -> Json:
        answer = inner(call, effect_id)
        extras = {"contextWindow": WINDOW, "maxOutputTokens": 500}
        return answer if is_summary(call) else {**answer, "evidence": {"extras": extras}}

    runtime = Runtime(model)
    assert await runtime.turn(pages()).run() == Reported("completed")
    assert kinds(runtime)[0] == "compaction"


async def test_a_second_compaction_merges_the_summary_of_the_first() -> None:
    summaries: list[JsonObject] = []

    def note(call: JsonObject) -> Json:
        summaries.append(call)
        return text(f"Summary {len(summaries)}.")

    runtime = Runtime(spending(8, summary=note))
    cache = TranscriptCache()
    assert await runtime.turn(pages(), model=MODEL, transcripts=cache).run() == Reported("completed")
    assert len(summaries) > 1
    for number, call in enumerate(summaries[1:], 1):
        assert f"<previous-summary>\nSummary {number}.\n</previous-summary>" in said(call)
    assert [entry["kind"] for entry in runtime.transcript].count("compaction") == 1
    [facts] = [update["compaction"] for update in runtime.outputs[0][1]["transcript"] if "compaction" in update]
    steps_summed = [effect_id for effect_id in runtime.journal if "/summary" in effect_id]
    assert facts["summaryEffectIds"] == steps_summed
    assert len(steps_summed) == len(summaries)
    before = len(runtime.asked("transcript.read"))
    assert await runtime.turn(pages(), model=MODEL, turn_id="turn_2", transcripts=cache).run() == Reported("completed")
    assert len(runtime.asked("transcript.read")) == before, "the cache holds the compacted transcript"


async def test_a_compaction_of_an_earlier_segment_is_not_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "YIELD_STEPS", 5)
    runtime = Runtime(spending(5))
    assert await runtime.turn(pages(), model=MODEL).run() == Reported("yielded")
    assert kinds(runtime)[0] == "compaction"
    message = {"kind": "continue"}
    assert await runtime.turn(pages(), model=MODEL, message=message).run() == Reported("completed")
    assert [bool(output["transcript"][0].get("compaction")) for _, output in runtime.outputs] == [True, False]
    assert kinds(runtime)[0] == "compaction"


async def test_a_long_conversation_is_summarized_in_parts() -> None:
    seen: list[JsonObject] = []

    def note(call: JsonObject) -> Json:
        seen.append(call)
        return text(f"Part {len(seen)}.")

    runtime = Runtime(spending(0, summary=note), cursor=5)
    runtime.transcript = [
        entry("input", "turn_0", event={"kind": "user-message", "text": f"page {number}: {'word ' * 300}"})
        for number in range(15)
    ]
    assert await runtime.turn(model=MODEL).run() == Reported("completed")
    assert len(seen) > 1
    for number, call in enumerate(seen[1:], 1):
        assert f"<previous-summary>\nPart {number}.\n</previous-summary>" in said(call)
    told = "".join(said(call).partition("<conversation>")[2] for call in seen)
    assert [f"page {number}:" in told for number in range(12)] == [True] * 12
    [facts] = [update["compaction"] for update in runtime.outputs[0][1]["transcript"] if "compaction" in update]
    assert facts["summaryEffectIds"] == [
        f"{TURN}:0:model:step-1/summary-threshold-{number + 1}" for number in range(len(seen))
    ]
    assert runtime.transcript[0]["summary"] == f"Part {len(seen)}."


async def test_a_part_that_overflows_is_asked_in_smaller_parts() -> None:
    sizes: list[int] = []

    def note(call: JsonObject) -> Json:
        sizes.append(len(said(call)))
        return OVERFLOW if sizes[-1] > 7000 else text("Sum.")

    runtime = Runtime(spending(0, summary=note), cursor=5)
    runtime.transcript = [
        entry("input", "turn_0", event={"kind": "user-message", "text": "word " * 300}) for number in range(15)
    ]
    assert await runtime.turn(model=MODEL).run() == Reported("completed")
    assert sizes[0] > 7000 > sizes[1]
    [facts] = [update["compaction"] for update in runtime.outputs[0][1]["transcript"] if "compaction" in update]
    written = [effect_id for effect_id, row in runtime.journal.items() if row.outcome != {"value": OVERFLOW}]
    assert facts["summaryEffectIds"] == [effect_id for effect_id in written if "/summary" in effect_id]


async def test_a_summary_that_cannot_be_had_does_not_end_the_turn() -> None:
    failed = {"kind": "failed", "code": "content_policy", "message": "no", "retryable": False}
    runtime = Runtime(spending(5, summary=lambda call: failed))
    assert await runtime.turn(pages(), model=MODEL).run() == Reported("completed")
    assert "compaction" not in kinds(runtime)
    assert len([effect_id for effect_id in runtime.journal if "/summary" in effect_id]) == 1, "it is asked once"


async def test_a_summary_that_fails_for_a_moment_is_asked_again() -> None:
    answers = iter([{"kind": "failed", "code": "overloaded", "retryable": True, "retryAfterMs": 0}, text("Sum.")])
    runtime = Runtime(spending(4, summary=lambda call: next(answers)))
    assert await runtime.turn(pages(), model=MODEL).run() == Reported("completed")
    [facts] = [update["compaction"] for update in runtime.outputs[0][1]["transcript"] if "compaction" in update]
    assert facts["summaryEffectIds"] == [f"{TURN}:0:model:step-5/summary-threshold-1~2"]


@pytest.mark.parametrize(
    ("code", "ending", "thrown"),
    [
        ("run_not_held", Released("ownership.lost"), None),
        ("ownership_lost", Released("ownership.lost"), None),
        ("unavailable", Released("connection.lost"), None),
        ("turn_cancelled", Reported("cancelled"), None),
        ("effect_drift", Reported("failed"), "effect_drift"),
        ("invalid", Reported("failed"), "invalid"),
    ],
)
@pytest.mark.parametrize("method", ["effect.intent", "effect.outcome"])
async def test_a_refusal_of_a_summary_ends_the_turn_as_any_other(
    method: str, code: str, ending: object, thrown: str | None
) -> None:
    def refuse(asked: str, params: JsonObject) -> None:
        if asked == method and "/summary" in str(params.get("effectId") or params.get("effect", {}).get("effectId")):
            raise RuntimeRefusal(code, "no")

    runtime = Runtime(spending(5), intercept=refuse)
    assert await runtime.turn(pages(), model=MODEL).run() == ending
    assert [output.get("thrown", {}).get("code") for _, output in runtime.outputs][:1] in ([thrown], [])


async def test_a_cancelled_turn_cancels_its_summary() -> None:
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    runtime = Runtime(spending(5), at_gate=lambda call: hang() if is_summary(call) else None)
    turn = runtime.turn(pages(), model=MODEL)
    running = asyncio.create_task(turn.run())
    await asked.wait()
    turn.stop("cancel")
    assert await running == Reported("cancelled")
    assert runtime.cancels == [f"{TURN}:0:model:step-5/summary-threshold-1"]


# --- Overflow ------------------------------------------------------------------------------------------------------------


def overflowing(times: int, inner: Model) -> Model:
    """The first ``times`` forms of step 3's call do not fit."""

    def model(call: JsonObject, effect_id: str) -> Json:
        place = effect_id.rpartition("step-")[2]
        fits = "/summary" in place or place not in [f"3{'' if n == 0 else f'~{n + 1}'}" for n in range(times)]
        return inner(call, effect_id) if fits else OVERFLOW

    return model


async def test_a_call_that_overflows_is_asked_again_after_a_compaction() -> None:
    runtime = Runtime(overflowing(1, spending(4, each=1)))
    assert await runtime.turn(pages()).run() == Reported("completed")
    assert kinds(runtime)[0] == "compaction"
    [facts] = [update["compaction"] for update in runtime.outputs[0][1]["transcript"] if "compaction" in update]
    assert facts["trigger"] == "overflow"
    assert facts["summaryEffectIds"] == [f"{TURN}:0:model:step-3/summary-overflow-1"]
    step = [effect_id.rpartition(":")[2] for effect_id in runtime.journal if ":model:step-3" in effect_id]
    assert step == ["step-3", "step-3/summary-overflow-1", "step-3~2"]


async def test_a_call_that_overflows_again_fails_the_turn() -> None:
    runtime = Runtime(overflowing(2, spending(4, each=1)))
    assert await runtime.turn(pages()).run() == Reported("failed")
    assert runtime.outputs[0][1]["error"] == {"code": "model.context_overflow", "message": "too long"}
    assert sum("/summary" in effect_id for effect_id in runtime.journal) == 1


async def test_a_message_that_alone_overflows_fails_the_turn() -> None:
    runtime = Runtime(lambda call, effect_id: OVERFLOW)
    assert await runtime.turn(message="word " * 9000).run() == Reported("failed")
    assert runtime.outputs[0][1]["error"]["code"] == "model.context_overflow"
    assert len(runtime.gate_calls) == 1


async def test_an_overflow_whose_summary_cannot_be_had_says_both() -> None:
    failed = {"kind": "failed", "code": "auth", "message": "no key", "retryable": False}
    runtime = Runtime(overflowing(1, spending(4, each=1, summary=lambda call: failed)))
    assert await runtime.turn(pages()).run() == Reported("failed")
    error = runtime.outputs[0][1]["error"]
    assert error["code"] == "model.context_overflow"
    assert "too long" in error["message"]
    assert "no key" in error["message"]


async def test_a_call_past_the_bytes_of_a_call_is_compacted_before_it_is_sent() -> None:
    runtime = Runtime(spending(40, each=1), limits={"modelCallBytes": 30_000})
    assert await runtime.turn(pages()).run() == Reported("yielded")
    assert kinds(runtime)[0] == "compaction"
    assert max(len(body) for body in runtime.gate_bodies.values()) <= 30_000


async def test_a_summary_too_long_for_its_entry_is_cut() -> None:
    runtime = Runtime(spending(4, summary=lambda call: text("é" * 5000)), limits={"recordEntryBytes": 20_000})
    assert await runtime.turn(pages(), model=MODEL).run() == Reported("completed")
    assert len(runtime.transcript[0]["summary"].encode()) < 5000


# --- Memory --------------------------------------------------------------------------------------------------------------


async def test_the_memory_index_is_pinned_afresh_behind_the_summary() -> None:
    summaries: list[JsonObject] = []

    def note(call: JsonObject) -> Json:
        summaries.append(call)
        return text("Sum.")

    runtime = Runtime(spending(4, summary=note))
    memory = {"access": "read_only", "index": "- /memories/now.md"}
    old = runtime.start(memory={**memory, "index": "- /memories/old.md"}, turn_id="turn_0")
    runtime.transcript = pinned_entries(old)
    assert await runtime.turn(pages(), model=MODEL, memory=memory).run() == Reported("completed")
    texts = [entry.get("event", {}).get("text", "") for entry in runtime.transcript]
    assert kinds(runtime)[0] == "compaction"
    assert "/memories/now.md" in texts[1]
    assert not any("/memories/old.md" in shown for shown in texts)
    assert "memories" not in said(summaries[0])


# --- Replay --------------------------------------------------------------------------------------------------------------


def replayed() -> Model:
    """Two compactions by threshold, the first in parts, and one after an overflow."""
    return overflowing(1, spending(7, summary=lambda call: text("Sum of " + str(len(said(call))))))


def hashes(runtime: Runtime) -> dict[str, str]:
    return {effect_id: row.request_hash for effect_id, row in runtime.journal.items()}


def fresh() -> Runtime:
    runtime = Runtime(replayed())
    runtime.transcript = [
        entry("input", "turn_0", event={"kind": "user-message", "text": "word " * 300}) for number in range(6)
    ]
    return runtime


async def undisturbed() -> Runtime:
    runtime = fresh()
    sandbox = pages()
    sandbox.world = runtime.world
    assert await runtime.turn(sandbox, model=MODEL).run() == Reported("completed")
    return runtime


async def test_a_turn_cut_off_at_any_point_of_its_compactions_asks_for_the_same() -> None:
    whole = await undisturbed()
    assert sum("/summary" in effect_id for effect_id in whole.journal) >= 3
    assert any("overflow" in effect_id for effect_id in whole.journal)
    for at in range(len(whole.world.points)):
        runtime, sandbox = fresh(), pages()
        await until_killed(runtime, sandbox, at, model=MODEL)
        if not runtime.outputs:
            assert await runtime.turn(sandbox, model=MODEL).run() == Reported("completed")
        assert kinds(runtime)[0] == "compaction"
        assert all(row.status == "completed" for row in runtime.journal.values())
        if "tool.interrupted" not in str(runtime.journal):
            assert list(runtime.journal) == list(whole.journal)
            assert hashes(runtime) == hashes(whole)
            assert runtime.transcript == whole.transcript
        runtime.world = World()
        await asyncio.sleep(0)
