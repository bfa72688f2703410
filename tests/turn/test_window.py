"""How full the window is, and which results are shown in their short form: from the transcript alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.turn_start import ModelDescriptor
from pod_host.turn.window import Fill, Window, used_tokens

WINDOW = Window.of(1000, None)
MESSAGE: JsonObject = {"kind": "input", "turnId": "t"}
RESULTS: JsonObject = {"kind": "tool-results", "turnId": "t", "stepId": "s"}


def answer(step: str = "s", **members: Json) -> JsonObject:
    return {"kind": "candidate", "turnId": "t", "stepId": step, "candidate": {"output": [], **members}}


def counted(tokens: int, step: str = "s") -> JsonObject:
    return answer(step, usage={"totalTokens": tokens})


@pytest.mark.parametrize(
    ("tokens", "most", "reserve"), [(200_000, 64_000, 16_384), (200_000, 4096, 4096), (8000, None, 2000)]
)
def test_the_reserve_is_what_an_answer_may_take(tokens: int, most: int | None, reserve: int) -> None:
    model = ModelDescriptor(provider="p", id="m", context_window=tokens, max_output_tokens=most)
    window = Window.of_model(model)
    assert window is not None
    assert window.full == tokens - reserve
    assert Window.of_model(ModelDescriptor(provider="p", id="m")) is None
    assert Window.of_model(None) is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"totalTokens": 30, "inputTokens": 1}, 30),
        ({"inputTokens": 1, "cachedTokens": 2, "cacheWriteTokens": 3, "outputTokens": 4}, 10),
        ({"inputTokens": 5.0}, 5),
        ({"inputTokens": True, "outputTokens": -3, "totalTokens": "many"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_a_model_counted_is_believed(usage: Json, tokens: int | None) -> None:
    assert used_tokens({"usage": usage}) == tokens


def test_what_came_after_the_last_count_is_estimated() -> None:
    fill = Fill(WINDOW)
    fill.add(MESSAGE, 7, 0)
    assert (fill.tokens, fill.measured) == (7, False)
    fill.add(counted(100), 3, 0)
    fill.add(RESULTS, 20, 0)
    assert (fill.tokens, fill.measured) == (120, True)


def test_a_count_from_before_the_compaction_does_not_hold_after_it() -> None:
    fill = Fill(WINDOW)
    fill.add({"kind": "compaction", "turnId": "t", "stepId": "s9"}, 10, 0)
    fill.add(counted(900, "s8"), 5, 0)
    assert (fill.tokens, fill.measured) == (15, False)
    fill.add(counted(40, "s9"), 5, 0)
    assert (fill.tokens, fill.measured) == (40, True)


def test_the_window_is_the_answers_where_the_turn_has_none() -> None:
    extras = {"extras": {"contextWindow": 400, "maxOutputTokens": 50}}
    unknown, known = Fill(None), Fill(WINDOW)
    for fill in (unknown, known):
        fill.add(answer(evidence=extras), 1, 0)
    assert unknown.window == Window(400, 50)
    assert known.window == WINDOW


entries = st.lists(
    st.tuples(st.sampled_from([MESSAGE, RESULTS, answer(), counted(300), counted(700)]), st.integers(0, 300)),
    max_size=40,
)


@given(entries)
def test_short_forms_come_in_jumps_and_leave_the_newest_alone(added: list[tuple[JsonObject, int]]) -> None:
    fill, places = Fill(WINDOW), [0]
    for index, (entry, tokens) in enumerate(added):
        before = fill.tokens + tokens
        fill.add(entry, tokens, tokens // 2)
        if fill.aged != places[-1]:
            newest = sum(size for _, size in added[fill.aged : index + 1])
            assert newest >= WINDOW.tokens // 8, "the newest eighth stays whole"
            saved = sum(size // 2 for _, size in added[places[-1] : fill.aged])
            assert saved >= WINDOW.tokens // 10, "a move gives back a tenth"
            assert before > WINDOW.tokens // 2 or entry["kind"] == "candidate"
        places.append(fill.aged)
    assert places == sorted(places)
