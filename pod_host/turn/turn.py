"""One segment of one turn, from TurnStart to its output (Harness API v5, sections 3 to 8)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pod_host.contract.output import TurnOutput
from pod_host.contract.transcript import Entry, TranscriptReadResult
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import CancelReason, RunParams
from pod_host.errors import PodHostError
from pod_host.turn.agents import used_agents
from pod_host.turn.artifacts import Artifacts
from pod_host.turn.endings import Ending, Released, Stopped, TurnFailure, TurnThrown, Waits
from pod_host.turn.identity import Identities
from pod_host.turn.inputs import check_size, input_entries
from pod_host.turn.journal import Journal
from pod_host.turn.log import tell
from pod_host.turn.loop import Answered
from pod_host.turn.loops import Loop, Segment
from pod_host.turn.mcp_discovery import Discovery
from pod_host.turn.memory import missing_pins
from pod_host.turn.message_files import MessageFiles
from pod_host.turn.outputs_folder import OutputsFolder
from pod_host.turn.ports import GatePort, RunPort, SandboxPort
from pod_host.turn.projection import Reader
from pod_host.turn.reporting import Reporter, Taken, released
from pod_host.turn.requests import Requests
from pod_host.turn.skill_files import FileCache
from pod_host.turn.state import kept_state, state_of
from pod_host.turn.stop import Stop
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.tracing import OFF, Marks, Tracing, code_of
from pod_host.turn.transcripts import SegmentTranscript, TranscriptCache


class Turn:
    """``sandbox`` None: no sandbox tools are offered. ``transcripts`` and ``files``: what the host's turns keep for each
    other. ``notes``: the host's sentences for the model, the same for the whole segment. Make it within the event loop;
    `run` it once."""

    def __init__(
        self,
        *,
        run: RunPort,
        start: TurnStart,
        gates: GatePort,
        sandbox: SandboxPort | None,
        transcripts: TranscriptCache,
        files: FileCache,
        notes: Sequence[str],
        tracing: Tracing = OFF,
    ) -> None:
        self._run = run
        self._start = start
        self._gates = gates
        self._sandbox = sandbox
        self._transcripts = transcripts
        self._files = files
        self._notes = tuple(notes)
        self._tracing = tracing
        self._stop = Stop()
        self._requests = Requests(run, self._stop)
        self._artifacts = Artifacts(self._requests, start.limits.chunk_bytes)
        self._reader = Reader.of(start)
        self._ids = Identities.of(start)
        most = start.limits.harness_state_bytes
        self._reporter = Reporter(self._requests, kept_state(start.checkpoint.state, self._ids.turn_id, most))
        self._transcript: SegmentTranscript | None = None
        self._gate = ToolGate(
            gates=gates,
            run=run,
            stop=self._stop,
            traceparent=start.traceparent,
            body_bytes=start.limits.tool_answer_bytes,
        )

    def stop(self, reason: CancelReason, message: str | None = None) -> None:
        """Stop the turn, as core's ``cancel`` says. Idempotent; `run` then ends. ``message`` is for the log."""
        tell(logging.INFO, "turn.stopped", reason=reason, message=message)
        self._stop.stop(reason)

    async def run(self) -> Ending:
        """Run the segment to its end. A bug of ours ends it as ``thrown``, so nothing is raised but a cancellation of
        the task that runs it."""
        with self._tracing.turn(self._start, self._requests.run_id) as marks:
            ended = await self._end(marks)
            if isinstance(ended, Released):
                marks.set(released=ended.reason)
                return ended
            marks.set(status=ended.status)
            return ended.ending

    async def _end(self, marks: Marks) -> Taken | Released:
        ended: Taken | Released | None = None  # None: our own task is cancelled
        try:
            output = await self._output()
            fault = output.error or output.thrown
            marks.set(error_type=code_of(fault.code or "thrown") if fault else None)
            ended = await self._reporter.report(output)
        except Stopped as stopped:
            ended = released(stopped.reason)
        finally:
            self._keep_transcript(ended)
        return ended

    def _keep_transcript(self, ended: Taken | Released | None) -> None:
        """Only where core kept our edits; after anything else the next segment reads what there is."""
        cursor = ended.edits_cursor if isinstance(ended, Taken) else None
        transcript = self._transcript
        if cursor is None or transcript is None or not transcript.as_recorded:
            self._transcripts.drop(self._ids.session_id)
        else:
            self._transcripts.put(self._ids.session_id, cursor, transcript)

    async def _output(self) -> TurnOutput:
        """The segment's output. Raises Stopped when none is to be sent."""
        try:
            return await self._segment()
        except Stopped as stopped:
            if stopped.reason not in ("cancel", "deadline"):
                raise
            return self._reporter.cancelled()
        except Waits as waits:
            return TurnOutput(
                run_id=self._requests.run_id,
                status=waits.status,
                state=self._reporter.state,
                effect_ids=waits.effect_ids,
            )
        except TurnFailure as failure:
            return self._reporter.failed(failure)
        except PodHostError as fault:
            tell(logging.ERROR, "turn.thrown", fault=fault, code=fault.code)
            return self._reporter.failed(TurnThrown(fault.code, str(fault)))
        except Exception as bug:  # noqa: BLE001 - a bug ends this turn, told to core and the log, not the host
            tell(logging.ERROR, "turn.thrown", fault=bug, code="internal")
            return self._reporter.failed(TurnThrown("internal", f"{type(bug).__name__}: {bug}"))

    async def _segment(self) -> TurnOutput:
        start = self._start
        if start.engine != "agent":
            raise TurnFailure("engine.unsupported", f"This harness runs agent turns only, not engine {start.engine!r}")
        inputs = input_entries(start.checkpoint.input, self._ids.turn_id)
        check_size(inputs, start.limits.record_entry_bytes)
        self._transcript = transcript = await self._read_transcript(inputs)
        agents = used_agents(start)
        segment = self._shared()
        loop = Loop(
            segment=segment,
            start=start,
            facts=await Discovery(self._requests, self._gate, start, agents).facts(),
            ids=self._ids,
            transcript=transcript,
            reader=self._reader,
            agents=agents,
        ).make()
        end = await loop.run([*missing_pins(start, transcript.entries), *inputs])
        output = TurnOutput(
            run_id=self._requests.run_id,
            status="yielded",
            state=state_of(self._ids.turn_id, end.steps, loop.tools.tools.found, start.limits.harness_state_bytes),
            transcript=transcript.updates(start.limits.record_entry_bytes),
        )
        if isinstance(end, Answered):
            await self._save_outputs(segment)
            return output.model_copy(update={"status": "completed", "output": end.output})
        return output

    async def _read_transcript(self, inputs: list[Entry]) -> SegmentTranscript:
        """Of a reader that knows the files which messages name: those of ``inputs`` too, which come after it."""
        session_id, cursor = self._ids.session_id, self._start.transcript.cursor
        entries = self._transcripts.entries(session_id, cursor)
        if entries is None:
            answer: TranscriptReadResult = await self._requests.ask(
                "transcript.read", RunParams(run_id=self._requests.run_id)
            )
            entries = answer.entries
        files = MessageFiles(self._artifacts, self._files, self._stop, session_id, self._ids.turn_id)
        self._reader = await files.known_to(self._reader, [*entries, *inputs])
        cached = self._transcripts.get(session_id, cursor, self._reader)
        return cached or await SegmentTranscript.encode(entries, self._reader)

    async def _save_outputs(self, segment: Segment) -> None:
        files = segment.workspace_files
        if files is not None:
            most = self._start.limits.folder_entries
            await OutputsFolder(self._ids, self._requests, self._artifacts, files, most).save()

    def _shared(self) -> Segment:
        start = self._start
        has_sandbox = start.routing.sandbox is not None or (start.agent is not None and start.agent.sandbox is not None)
        return Segment(
            start=start,
            run=self._run,
            gates=self._gates,
            sandbox=self._sandbox if has_sandbox else None,
            stop=self._stop,
            requests=self._requests,
            journal=Journal(self._requests, start.outcomes),
            gate=self._gate,
            artifacts=self._artifacts,
            files=self._files,
            notes=self._notes,
        )
