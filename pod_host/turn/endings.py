"""How a turn ends: what the host is told (`Ending`), and what inside a turn leads there (exceptions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pod_host.contract.output import OutputStatus
from pod_host.contract.work import CancelReason, ReleaseReason
from pod_host.errors import PodHostError
from pod_host.turn.text import readable


@dataclass(frozen=True, slots=True)
class Reported:
    """The segment's output was taken by the Runtime: the run is over."""

    status: OutputStatus


@dataclass(frozen=True, slots=True)
class Released:
    """No output was sent: give the run back for this reason (``lease.release``)."""

    reason: ReleaseReason


Ending: TypeAlias = Reported | Released

StopReason: TypeAlias = CancelReason | Literal["connection.lost", "failure"]
"""Why work stops before its end: core's reasons, a lost connection, or another part of the same step that failed."""


class Stopped(PodHostError):
    """Work was given up because the turn is to stop."""

    code = "stopped"

    def __init__(self, reason: StopReason) -> None:
        super().__init__(f"the turn is stopped: {reason}")
        self.reason = reason


class TurnFailure(PodHostError):
    """The turn ends as failed, with an error that its people are shown (``turn.failed``, ``error``)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = readable(message)


class TurnThrown(TurnFailure):
    """Our loop cannot go on (``turn.failed``, ``thrown``): a refusal that must not come, a bug."""


class Waits(PodHostError):
    """The segment ends here and runs again later: effects are held for a person, or their fate is not known."""

    code = "waits"

    def __init__(self, status: Literal["waiting", "uncertain"], effect_ids: Sequence[str]) -> None:
        super().__init__(f"{status}: {', '.join(effect_ids)}")
        self.status: Literal["waiting", "uncertain"] = status
        self.effect_ids = list(effect_ids)
