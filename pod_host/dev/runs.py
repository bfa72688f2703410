"""A leased run, as every part of core sees it (Harness API v5, section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from pod_host.contract.base import JsonObject
from pod_host.contract.work import CancelReason
from pod_host.dev.record import Place

PAST_DEADLINE: Final = {"code": "turn.deadline", "message": "The turn passed its deadline"}


@dataclass
class Run:
    """A leased run. ``abort``: core told the harness to stop, and why. ``over``: why it ended."""

    id: str
    session_id: str
    turn_id: str
    segment: int
    epoch: int
    manifest_hash: str
    agent_id: str
    holder: Holder
    deadline: float
    token_expires: float = 0.0
    abort: CancelReason | None = None
    over: str | None = None
    answers: dict[str, JsonObject] = field(default_factory=dict)  # of its output request, by method

    @property
    def place(self) -> Place:
        return Place(self.session_id, self.turn_id, self.id)


class Holder(Protocol):
    """A connection, as its runs see it."""

    harness_id: str
    runs: dict[str, Run]

    @property
    def closed(self) -> str | None: ...

    def tell(self, method: str, params: JsonObject) -> None: ...
