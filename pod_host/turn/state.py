"""What a turn leaves for its next segment (Harness API v5, section 7): ``{"v": 1, "turnId", "steps"}``."""

from __future__ import annotations

from collections.abc import Iterable

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.transcript import Entry

VERSION = 1


def state_of(turn_id: str, steps: int) -> JsonObject:
    """``steps``: how many the turn has had, over all its segments."""
    return {"v": VERSION, "turnId": turn_id, "steps": steps}


def steps_before(state: Json, turn_id: str, entries: Iterable[Entry]) -> int:
    """Steps of the turn before this segment. A state of another turn says 0; one of another release, or of another
    harness, says nothing: then the turn's own answers in the transcript are counted."""
    if isinstance(state, dict) and state.get("v") == VERSION:
        steps = state.get("steps")
        if state.get("turnId") != turn_id:
            return 0
        if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0:
            return steps
    return sum(entry.get("kind") == "candidate" and entry.get("turnId") == turn_id for entry in entries)
