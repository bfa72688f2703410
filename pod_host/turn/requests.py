"""A turn's requests to the Runtime, and what each refusal does to the turn (Harness API v5, section 1)."""

from __future__ import annotations

from typing import Any

from pod_host.contract.base import Sent
from pod_host.errors import ChannelClosed, ContractViolation, RuntimeRefusal
from pod_host.turn.endings import Stopped, StopReason, TurnThrown
from pod_host.turn.ports import RunPort
from pod_host.turn.stop import Stop

_STOPS: dict[str, StopReason] = {
    "run_not_held": "ownership.lost",
    "ownership_lost": "ownership.lost",
    "turn_cancelled": "cancel",
    "unavailable": "connection.lost",
}
_STORES = frozenset({"artifact.read", "artifact.write", "definition.file"})  # may be out while the run goes on


class LimitExceeded(TurnThrown):
    """What was sent passes a Runtime limit: nothing was recorded, so something smaller may be sent."""


class Requests:
    """Asks for one run. The refusals that end the run set its `Stop`, so that all work beside the asker ends too."""

    def __init__(self, run: RunPort, stop: Stop) -> None:
        self._run = run
        self._stop = stop

    @property
    def run_id(self) -> str:
        return self._run.grant.run_id

    async def ask(self, method: str, params: Sent, finishes: frozenset[StopReason] = frozenset()) -> Any:
        """The method's result model; ``finishes`` as in `Stop.race`.

        Raises Stopped (the run is over for us), LimitExceeded, or TurnThrown with the refusal's code: ``effect_drift``,
        ``invalid`` (what cannot be sent at all, too), ``not_found``, and, when they come a second time, ``internal`` and a
        store's ``unavailable``.
        """
        try:
            return await self._once(method, params, finishes)
        except RuntimeRefusal as refusal:
            if refusal.code != "internal" and not _store_is_out(method, refusal):
                raise self._end(method, refusal) from refusal
        try:
            return await self._once(method, params, finishes)
        except RuntimeRefusal as refusal:
            raise self._end(method, refusal) from refusal

    async def _once(self, method: str, params: Sent, finishes: frozenset[StopReason]) -> Any:
        try:
            return await self._stop.race(lambda: self._run.request(method, params), finishes)
        except ContractViolation as fault:
            raise TurnThrown(fault.code, f"{method}: {fault}") from fault

    def _end(self, method: str, refusal: RuntimeRefusal) -> Exception:
        reason = None if _store_is_out(method, refusal) else _STOPS.get(refusal.code)
        if reason is not None:
            self._stop.stop(reason)
            return Stopped(self._stop.reason or reason)
        kind = LimitExceeded if refusal.code == "limit_exceeded" else TurnThrown
        return kind(refusal.code, refusal.message)


def _store_is_out(method: str, refusal: RuntimeRefusal) -> bool:
    """Whether the store behind a request does not answer: the connection and the run are whole."""
    return method in _STORES and refusal.code == "unavailable" and not isinstance(refusal, ChannelClosed)
