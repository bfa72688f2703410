"""What the turns of a host share, and how one is made."""

from __future__ import annotations

from typing import ClassVar

from pod_host.client import Gates, Run
from pod_host.contract.base import Wire
from pod_host.contract.effects import (
    IntentParams,
    IntentResult,
    ModelContext,
    ModelIntent,
    OutcomeParams,
    OutcomeResult,
)
from pod_host.contract.output import OutputResult, TurnOutput
from pod_host.contract.transcript import TranscriptReadResult
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import LeaseResult, RunParams
from pod_host.host.workspace import Workspaces
from pod_host.turn import FileCache, Tracing, TranscriptCache, Turn


class Turns:
    """``otlp_endpoint``: of the operator's collector of spans; None: no spans."""

    models: ClassVar[tuple[type[Wire], ...]] = (
        LeaseResult,
        TurnStart,
        RunParams,
        TranscriptReadResult,
        ModelContext,
        ModelIntent,
        IntentParams,
        IntentResult,
        OutcomeParams,
        OutcomeResult,
        TurnOutput,
        OutputResult,
    )
    """What every turn reads or makes. A model's checks are built at its first use: a millisecond for a large one."""

    def __init__(self, gates: Gates, workspaces: Workspaces, otlp_endpoint: str | None) -> None:
        self._gates = gates
        self._workspaces = workspaces
        self._transcripts = TranscriptCache()
        self._files = FileCache()
        self._tracing = Tracing.to(otlp_endpoint)

    def new(self, run: Run, start: TurnStart, notes: list[str]) -> Turn:
        return Turn(
            run=run,
            start=start,
            gates=self._gates,
            sandbox=self._workspaces.of_run(run, start),
            transcripts=self._transcripts,
            files=self._files,
            notes=notes,
            tracing=self._tracing,
        )

    async def close(self) -> None:
        """The last spans are sent."""
        await self._tracing.close()
