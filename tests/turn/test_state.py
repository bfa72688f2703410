"""What a turn leaves for its next segment."""

from __future__ import annotations

import pytest

from pod_host.contract.base import Json, JsonObject
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
