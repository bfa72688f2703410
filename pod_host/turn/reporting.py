"""The one output that ends a segment, and what a refused output does (Harness API v5, section 7)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pod_host.contract.base import Json
from pod_host.contract.output import OutputResult, OutputStatus, Thrown, TurnError, TurnOutput, method_of
from pod_host.contract.work import ReleaseReason
from pod_host.turn.endings import Released, Reported, Stopped, StopReason, TurnFailure, TurnThrown
from pod_host.turn.log import tell
from pod_host.turn.requests import LimitExceeded, Requests
from pod_host.turn.stop import OUTPUT

_RELEASES: dict[StopReason, ReleaseReason] = {"shutdown": "shutdown", "ownership.lost": "ownership.lost"}


@dataclass(frozen=True, slots=True)
class Taken:
    """The Runtime took the output. ``cursor``: the transcript's new one."""

    status: OutputStatus
    cursor: int | None

    @property
    def ending(self) -> Reported:
        return Reported(self.status)

    @property
    def edits_cursor(self) -> int | None:
        """The cursor at which the transcript is what the segment made of it; None when core dropped the edits."""
        return self.cursor if self.status in ("completed", "yielded") else None


@dataclass(frozen=True, slots=True)
class Reporter:
    """``state``: as the segment began with it, for the ends that leave it so."""

    requests: Requests
    state: Json

    def failed(self, failure: TurnFailure) -> TurnOutput:
        run_id = self.requests.run_id
        if isinstance(failure, TurnThrown) and not isinstance(failure, LimitExceeded):
            return TurnOutput(
                run_id=run_id, state=self.state, thrown=Thrown(code=failure.code, message=failure.message)
            )
        error = TurnError(code=failure.code, message=failure.message)
        return TurnOutput(run_id=run_id, status="failed", state=self.state, error=error)

    def cancelled(self) -> TurnOutput:
        return TurnOutput(run_id=self.requests.run_id, status="cancelled", state=self.state)

    async def report(self, output: TurnOutput) -> Taken | Released:
        """Send ``output``. Refused for what it holds, the turn is reported as failed instead; refused as cancelled, as
        cancelled; refused again, the run is given up: to run it anew would end the same way."""
        while True:
            try:
                answer: OutputResult = await self.requests.ask(method_of(output), output, OUTPUT)
                return Taken(_status(output), answer.cursor)
            except Stopped as stopped:
                if stopped.reason not in ("cancel", "deadline") or _status(output) == "cancelled":
                    return released(stopped.reason)
                output = self.cancelled()
            except TurnFailure as refusal:
                status = _status(output)
                tell(logging.ERROR, "turn.output_refused", status=status, code=refusal.code, message=refusal.message)
                if status in ("failed", "cancelled"):
                    return Released("ownership.lost")
                output = self.failed(refusal)


def released(reason: StopReason) -> Released:
    """No output goes out. One that core leaves unanswered after a cancel means that nobody is there."""
    return Released(_RELEASES.get(reason, "connection.lost"))


def _status(output: TurnOutput) -> OutputStatus:
    return output.status or "failed"
