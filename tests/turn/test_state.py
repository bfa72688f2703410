"""What a turn leaves for its next segment."""

from __future__ import annotations

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import encode
from pod_host.turn.state import state_of, steps_before


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        (state_of("t", 40), 40),
        (state_of("earlier", 40), 0),
        (None, 2),
        ("text", 2),
        ({"v": 2, "turnId": "t", "steps": 9}, 2),
        ({"v": 1, "turnId": "t", "steps": "9"}, 2),
        ({"v": 1, "turnId": "t", "steps": True}, 2),
    ],
)
def test_steps_go_on_from_the_state_or_else_from_the_transcript(state: Json, steps: int) -> None:
    entries: list[JsonObject] = [
        {"kind": "candidate", "turnId": turn_id, "stepId": "s", "candidate": {}} for turn_id in ("t", "earlier", "t")
    ]
    assert steps_before(state, "t", entries) == steps


def test_what_was_found_last_stays_where_all_of_it_would_pass_the_limit() -> None:
    found = [f"mail__tool_{number}" for number in range(40)]
    assert state_of("turn_1", 3, found, 10_000)["found"] == found
    state = state_of("turn_1", 3, found, 200)
    assert state["found"] == found[-len(state["found"]) :]
    assert 150 < len(encode(state)) <= 200
    assert "found" not in state_of("turn_1", 3, found, 50)
