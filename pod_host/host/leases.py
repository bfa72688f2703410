"""The runs of one connection: leased, renewed, stopped, given back (Harness API v5, section 2).

One ``lease`` waits at a time, while fewer runs than there are slots are held. Each run is a task of its own, and its
renewals are another, so that nothing that a turn does delays them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pod_host import limits
from pod_host.client import Channel, Run, retry
from pod_host.contract.base import Empty
from pod_host.contract.output import Thrown, TurnOutput
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import Cancel, CancelReason, LeaseResult
from pod_host.errors import ChannelClosed, ContractViolation, PodHostError, RuntimeRefusal
from pod_host.host.log import get_log, redactor

if TYPE_CHECKING:
    from pod_host.turn.endings import Ending

_EARLY_CANCELS = 64  # of runs that are not, or not yet, held

log = get_log()


class RunningTurn(Protocol):
    """`turn.Turn`, as far as it is used here."""

    async def run(self) -> Ending: ...
    def stop(self, reason: CancelReason, message: str | None = None) -> None: ...


NewTurn = Callable[[Run, TurnStart], RunningTurn]


class Leases:
    """``renew_every``: seconds between two renewals of a run. ``new_turn`` makes the turn of a leased run."""

    def __init__(self, channel: Channel, *, slots: int, renew_every: float, new_turn: NewTurn) -> None:
        self._channel = channel
        self._renew_every = renew_every
        self._new_turn = new_turn
        self._free = asyncio.Semaphore(slots)
        self._turns: dict[str, RunningTurn] = {}
        self._holding: set[asyncio.Task[None]] = set()
        self._early: OrderedDict[str, Cancel] = OrderedDict()
        self._stopping: CancelReason | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """The ids of the runs that are held."""
        return tuple(self._turns)

    async def take(self) -> None:
        """Lease one run after another, until the connection is gone. Cancel it to take no more: the waiting lease is
        then given up at the Runtime too."""
        wait = limits.LEASE_PAUSE_FIRST_SECONDS
        while True:
            await self._free.acquire()
            try:
                leased: LeaseResult = await self._channel.request("lease", Empty())
            except ChannelClosed:
                return
            except RuntimeRefusal as refusal:
                log.warning("lease.failed", code=refusal.code, reason=refusal.message)
                self._free.release()
                await retry.pause(wait)
                wait = min(wait * 2, limits.LEASE_PAUSE_MOST_SECONDS)
                continue
            except BaseException:  # cancelled: the slot is not needed any more
                self._free.release()
                raise
            wait = limits.LEASE_PAUSE_FIRST_SECONDS
            self._hold_in_task(leased)

    def cancel(self, message: Cancel) -> None:
        """The Runtime's ``cancel``. It may come before the lease's answer was looked at: then it waits for its run."""
        turn = self._turns.get(message.run_id)
        if turn is not None:
            log.info("turn.cancelled", runId=message.run_id, reason=message.reason)
            turn.stop(message.reason, message.message)
            return
        self._early[message.run_id] = message
        if len(self._early) > _EARLY_CANCELS:
            self._early.popitem(last=False)

    async def stop(self, reason: CancelReason, seconds: float) -> None:
        """Stop every run and wait until each was given back; what takes longer than ``seconds`` is cancelled."""
        self._stopping = reason
        for turn in list(self._turns.values()):
            turn.stop(reason)
        if not self._holding:
            return
        _, late = await asyncio.wait(set(self._holding), timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=seconds)

    # --- one run ------------------------------------------------------------------------------------------------------

    def _hold_in_task(self, leased: LeaseResult) -> None:
        task = asyncio.create_task(self._hold(leased), name=f"run {leased.run.run_id}")
        self._holding.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._holding.discard(task)
        self._free.release()
        if not task.cancelled() and (fault := task.exception()):
            log.error("turn.crashed", fault=fault)

    async def _hold(self, leased: LeaseResult) -> None:
        run = Run(self._channel, leased.run)
        ids = {"runId": run.grant.run_id, "sessionId": run.grant.session_id, "turnId": run.grant.turn_id}
        try:
            start = TurnStart.read(leased.input)
        except ContractViolation as fault:
            log.warning("lease.unreadable", **ids, reason=str(fault))
            await _report_thrown(run, "invalid", f"This harness cannot read the turn. {fault}")
            return
        log.info("lease.granted", **ids, segment=start.checkpoint.segment)
        beating: asyncio.Task[None] | None = None
        try:
            turn = self._new_turn(run, start)
            self._begin(run.grant.run_id, turn)
            beating = asyncio.create_task(self._beat(run, turn), name=f"renewals of {run.grant.run_id}")
            ending = await turn.run()
        except Exception as fault:  # noqa: BLE001 - a bug in a turn ends that turn, not the host
            log.error("turn.crashed", fault=fault, **ids)
            await _report_thrown(run, "internal", redactor.clean(f"{type(fault).__name__}: {fault}"))
            return
        finally:
            self._turns.pop(run.grant.run_id, None)
            if beating is not None:
                beating.cancel()
        from pod_host.turn.endings import Released, Reported  # a turn has run: they are there

        match ending:
            case Reported(status):
                log.info("turn.ended", **ids, status=status)
            case Released(reason):
                await run.release(reason)
                log.info("turn.ended", **ids, released=reason)

    def _begin(self, run_id: str, turn: RunningTurn) -> None:
        """From here on the run can be stopped; what came before it existed is done now."""
        self._turns[run_id] = turn
        if (early := self._early.pop(run_id, None)) is not None:
            turn.stop(early.reason, early.message)
        if self._stopping is not None:
            turn.stop(self._stopping)

    async def _beat(self, run: Run, turn: RunningTurn) -> None:
        """Renew the run until it is over. A renewal without an answer is given up when the next is due."""
        ids = {"runId": run.grant.run_id, "sessionId": run.grant.session_id}
        while True:
            await asyncio.sleep(self._renew_every)
            try:
                async with asyncio.timeout(self._renew_every):
                    held = (await run.renew()).ok
            except ChannelClosed:
                return  # the connection's end stops every run
            except RuntimeRefusal as refusal:
                held = refusal.code not in ("run_not_held", "ownership_lost")
                if held:
                    log.warning("lease.renew_failed", **ids, code=refusal.code, reason=refusal.message)
            except TimeoutError:
                held = True
                log.warning("lease.renew_failed", **ids, reason="no answer")
            if not held:
                log.warning("lease.lost", **ids)
                turn.stop("ownership.lost")
                return


async def _report_thrown(run: Run, code: str, message: str) -> None:
    """End the turn as one whose loop threw: it must not be offered again and again."""
    output = TurnOutput(run_id=run.grant.run_id, thrown=Thrown(code=code, message=message))
    try:
        await run.request("turn.failed", output)
    except PodHostError as refusal:
        log.warning("turn.unreported", runId=run.grant.run_id, reason=str(refusal))
        await run.release("shutdown")
