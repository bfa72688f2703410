"""Results that fit, and what the transcript keeps of an outcome."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.turn.results import fit, json_bytes, share_bytes, smaller, tool_result
from tests.turn.json_values import values


@given(values, st.integers(1024, 4096))
def test_what_fits_stays_as_it_is_and_the_rest_fits_afterwards(value: Json, most: int) -> None:
    fitted = fit({"kind": "completed", "output": value}, most)
    assert json_bytes(fitted) <= most
    if json_bytes({"kind": "completed", "output": value}) <= most:
        assert fitted == {"kind": "completed", "output": value}


@given(st.lists(st.text(min_size=500, max_size=3000), min_size=1, max_size=5), st.integers(1024, 4096))
def test_long_texts_of_any_alphabet_are_cut_to_fit(pieces: list[str], most: int) -> None:
    value = {"kind": "completed", "output": {"parts": pieces}}
    fitted = fit(value, most)
    assert json_bytes(fitted) <= most
    assert fitted == fit(fitted, most), "a result that was shaped stays as it is"


def test_a_cut_text_keeps_its_head_and_its_tail_and_says_what_is_missing() -> None:
    words = "".join(f"{n} " for n in range(100_000))
    fitted = fit({"kind": "completed", "output": words}, 10_000)
    shown: str = fitted["output"]
    head, note, tail = shown.split("\n")
    omitted = int(note.split("[")[1].split(" ")[0])
    assert words.startswith(head)
    assert words.endswith(tail)
    assert len(head) + omitted + len(tail) == len(words)
    assert 7_000 <= json_bytes(fitted) <= 10_000
    assert fitted["truncated"] is True


def test_a_short_text_beside_a_long_one_stays_whole() -> None:
    fitted = fit({"kind": "completed", "output": {"exitCode": 1, "stdout": "x" * 50_000, "stderr": "why"}}, 5000)
    assert fitted["output"]["stderr"] == "why"
    assert fitted["output"]["exitCode"] == 1


def test_a_long_failure_stays_a_failure() -> None:
    fitted = fit({"kind": "failed", "code": "mcp.tool", "message": "m" * 50_000}, 5000)
    assert (fitted["kind"], fitted["code"]) == ("failed", "mcp.tool")


def test_what_has_no_text_to_cut_fails_in_clear_words() -> None:
    fitted = fit({"kind": "completed", "output": list(range(10_000))}, 2000)
    assert (fitted["kind"], fitted["code"]) == ("failed", "tool.result-too-large")
    assert "2000" in fitted["message"]


def test_smaller_forms_come_to_an_end() -> None:
    value: Json = {"kind": "completed", "output": "x" * 100_000}
    sizes = []
    while value is not None:
        sizes.append(json_bytes(value))
        value = smaller(value)
    assert sizes == sorted(sizes, reverse=True)
    assert 2 < len(sizes) < 20


@pytest.mark.parametrize("calls", [1, 2, 7, limits.STEP_CALLS])
@pytest.mark.parametrize("entry", [100_000, 300_000, limits.RECORD_ENTRY_BYTES])
def test_the_shares_of_a_step_fit_its_entry(calls: int, entry: int) -> None:
    largest = {"callId": "c" * 256, "toolName": "t" * 256, "kind": "completed", "output": ""}
    assert calls * (share_bytes(entry, calls) + json_bytes(largest)) + limits.ENTRY_ENVELOPE_BYTES <= entry


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"kind": "completed", "output": None}, {"kind": "completed", "output": None}),
        (
            {
                "kind": "completed",
                "output": 1,
                "truncated": True,
                "files": [{"mediaType": "image/png", "reference": {}}],
            },
            {"kind": "completed", "output": 1, "files": [{"mediaType": "image/png", "reference": {}}]},
        ),
        (
            {"kind": "failed", "code": "x.y", "message": "m", "retryable": False, "server": "s"},
            {"kind": "failed", "code": "x.y", "message": "m", "retryable": False},
        ),
        ({"kind": "failed"}, {"kind": "failed", "code": "unknown", "message": "unknown"}),
        ({"kind": "denied", "reason": "no"}, {"kind": "denied", "reason": "no"}),
        ({"kind": "completed"}, {"kind": "completed", "output": {"kind": "completed"}}),
        ({"any": "json"}, {"kind": "completed", "output": {"any": "json"}}),
        ("text", {"kind": "completed", "output": "text"}),
    ],
)
def test_every_form_of_outcome_becomes_a_result(value: Json, kept: JsonObject) -> None:
    assert tool_result("c1", "bash", value) == {"callId": "c1", "toolName": "bash", **kept}
