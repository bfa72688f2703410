"""What a turn leaves for its next segment, and for the next turn (Harness API v5, section 7): ``{"v": 1, "turnId", "steps",
"found"?}``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import encode
from pod_host.contract.transcript import Entry

VERSION = 1


def state_of(turn_id: str, steps: int, found: Sequence[str] = (), most_bytes: int | None = None) -> JsonObject:
    """``steps``: how many the turn has had, over all its segments. ``found``: deferred tools that are offered, of which the
    last stay where all of them would pass ``most_bytes``."""
    state: JsonObject = {"v": VERSION, "turnId": turn_id, "steps": steps}
    if not found:
        return state
    whole = {**state, "found": list(found)}
    if most_bytes is not None and len(encode(whole)) > most_bytes:
        return state_of(turn_id, steps, found[1:], most_bytes)
    return whole


def kept_state(state: Json, turn_id: str, most_bytes: int) -> Json:
    """``state`` as the segment began with it, for an end that leaves it so; a fresh one where there is none, or it passes
    ``limits.harnessStateBytes``, which may have been lowered since."""
    if state is None or len(encode(state)) > most_bytes:
        return state_of(turn_id, 0)
    return state


def found_before(state: Json) -> list[str] | None:
    """Deferred tools that earlier segments found; None when the state is not of this release, and says nothing."""
    if not isinstance(state, dict) or state.get("v") != VERSION:
        return None
    found = state.get("found")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


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
