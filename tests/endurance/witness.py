"""What passed between the host and the Runtime, seen on the wire: who was told that what had happened.

It believes neither of the two. What it saw acknowledged must be found in the record and on the disk afterwards.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pod_host.contract.base import JsonObject


@dataclass
class Witness:
    """``executed``: how often core said ``execute``, by effect. ``acknowledged``: the outcome that core acknowledged, by
    effect; ``changed``: effects with two that differ. ``ended``: how often an output was acknowledged, by run.
    ``progress``: acknowledgements of any kind."""

    executed: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, JsonObject] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    progress: int = 0

    def answered(self, method: str, params: JsonObject, result: JsonObject) -> None:
        """Core answered a request of the host's with a result."""
        if method == "effect.intent":
            effect_id = params["effect"]["effectId"]
            if result["status"] == "execute":
                self.executed[effect_id] += 1
            elif result["status"] == "completed":
                self._outcome(effect_id, result["outcome"])
        elif method == "effect.outcome" and result["status"] == "completed":
            self._outcome(params["effectId"], result["outcome"])
        elif method in ("turn.completed", "turn.failed", "turn.waiting", "checkpoint"):
            self.ended[params["runId"]] += 1
            self.progress += 1

    def _outcome(self, effect_id: str, outcome: JsonObject) -> None:
        self.progress += 1
        if self.acknowledged.setdefault(effect_id, outcome) != outcome:
            self.changed.append(effect_id)

    def forget(self, effect_ids: set[str]) -> None:
        """These were compared with the record: a long run need not hold them."""
        for effect_id in effect_ids:
            self.acknowledged.pop(effect_id, None)
            self.executed.pop(effect_id, None)
        self.ended.clear()


@dataclass
class Conversation:
    """The frames of one connection, in both directions."""

    witness: Witness
    asked: dict[int, tuple[str, JsonObject]] = field(default_factory=dict)

    def from_host(self, frame: JsonObject) -> None:
        if frame["t"] == "req":
            self.asked[frame["id"]] = frame["m"], frame["p"]

    def from_core(self, frame: JsonObject) -> None:
        if frame["t"] == "res" and (asked := self.asked.pop(frame["id"], None)) and frame["ok"]:
            self.witness.answered(*asked, frame["r"])
