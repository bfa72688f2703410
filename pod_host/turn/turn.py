"""One segment of one turn, from TurnStart to its output (Harness API v5, sections 3 to 8)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pod_host import limits
from pod_host.contract.canonical import canonical
from pod_host.contract.output import TurnOutput
from pod_host.contract.transcript import Entry, TranscriptReadResult
from pod_host.contract.turn_start import AgentSandbox, McpFacts, TurnStart
from pod_host.contract.work import CancelReason, RunParams
from pod_host.errors import PodHostError
from pod_host.turn.answers import Answers
from pod_host.turn.artifact_tools import ArtifactTools
from pod_host.turn.artifacts import Artifacts
from pod_host.turn.compaction import Compaction
from pod_host.turn.conversation import Conversation
from pod_host.turn.endings import Ending, Released, Stopped, TurnFailure, TurnThrown, Waits
from pod_host.turn.http_tools import HttpTools
from pod_host.turn.identity import Identities
from pod_host.turn.inputs import check_size, input_entries
from pod_host.turn.journal import Journal
from pod_host.turn.log import tell
from pod_host.turn.loop import AgentLoop, Answered
from pod_host.turn.mcp_discovery import Discovery
from pod_host.turn.mcp_tools import McpTools
from pod_host.turn.memory import MemoryTools, memory_section, missing_pins, pinned_entries
from pod_host.turn.message_files import MessageFiles
from pod_host.turn.model_calls import ModelCalls
from pod_host.turn.outputs_folder import NAME as OUTPUTS
from pod_host.turn.outputs_folder import OutputsFolder
from pod_host.turn.ports import GatePort, RunPort, SandboxPort
from pod_host.turn.projection import Reader, instructions_text
from pod_host.turn.prompt import system_text
from pod_host.turn.reporting import Reporter, Taken, released
from pod_host.turn.requests import Requests
from pod_host.turn.sandbox_tools import SandboxTools
from pod_host.turn.shaping import Shaper
from pod_host.turn.skill_files import FileCache, SkillFiles, SkillMounts
from pod_host.turn.skill_tools import SkillTools
from pod_host.turn.skills import Skills
from pod_host.turn.state import kept_state, state_of, steps_before
from pod_host.turn.stop import IN_HAND, Stop
from pod_host.turn.tool_calls import ToolCalls
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.tool_search import with_search
from pod_host.turn.toolset import ToolProvider, Toolset
from pod_host.turn.tracing import OFF, Marks, Tracing, code_of
from pod_host.turn.transcripts import SegmentTranscript, TranscriptCache
from pod_host.turn.wakes import WakeTools
from pod_host.turn.workspace_files import WorkspaceFiles


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
        skills_dir = sandbox.skills_dir if sandbox is not None and self._workspace() is not None else None
        self._skills = Skills.of(start.manifest, skills_dir)
        trace = start.trace
        self._gate = ToolGate(
            gates=gates,
            run=run,
            stop=self._stop,
            traceparent=trace.traceparent if trace else None,
            body_bytes=start.limits.tool_answer_bytes,
        )
        self._mcp = McpTools(McpFacts(), self._ids.agent_id, self._gate)  # … until its servers are known

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
        facts = await Discovery(self._requests, self._gate, start).facts()
        self._mcp = McpTools(facts, self._ids.agent_id, self._gate)
        loop = self._loop(transcript)
        end = await loop.run([*missing_pins(start, transcript.entries), *inputs])
        output = TurnOutput(
            run_id=self._requests.run_id,
            status="yielded",
            state=state_of(self._ids.turn_id, end.steps, loop.tools.tools.found),
            transcript=transcript.updates(start.limits.record_entry_bytes),
        )
        if isinstance(end, Answered):
            await self._save_outputs()
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
        files = MessageFiles(self._artifacts, self._files, session_id, self._ids.turn_id)
        self._reader = await files.known_to(self._reader, [*entries, *inputs])
        cached = self._transcripts.get(session_id, cursor, self._reader)
        return cached or await SegmentTranscript.encode(entries, self._reader)

    async def _save_outputs(self) -> None:
        files = self._workspace_files()
        if files is not None:
            most = self._start.limits.folder_entries
            await OutputsFolder(self._ids, self._requests, self._artifacts, files, most).save()

    def _workspace_files(self) -> WorkspaceFiles | None:
        if self._sandbox is None or self._workspace() is None:
            return None
        return WorkspaceFiles(self._sandbox, self._stop)

    def _artifact_tools(self) -> ArtifactTools:
        workspace = self._workspace()
        outputs = f"{workspace}/{OUTPUTS}" if workspace is not None else None
        return ArtifactTools(self._artifacts, self._reader, self._workspace_files(), outputs)

    def _loop(self, transcript: SegmentTranscript) -> AgentLoop:
        start, stop = self._start, self._stop
        workspace = self._workspace()
        tools = with_search(Toolset(self._providers(workspace)), start.checkpoint.state, transcript.entries)
        journal = Journal(self._requests, start.outcomes)
        answers = Answers(start.manifest, self._ids.turn_id, transcript.entries)
        return AgentLoop(
            ids=self._ids,
            conversation=self._conversation(transcript, journal, tools, answers, workspace),
            tools=ToolCalls(
                ids=self._ids,
                tools=tools,
                journal=journal,
                stop=stop,
                record_entry_bytes=start.limits.record_entry_bytes,
                shaper=Shaper(Artifacts(self._requests, start.limits.chunk_bytes, IN_HAND), self._reader),
            ),
            transcript=transcript,
            answers=answers,
            stop=stop,
            steps=steps_before(start.checkpoint.state, self._ids.turn_id, transcript.entries),
        )

    def _conversation(
        self, transcript: SegmentTranscript, journal: Journal, tools: Toolset, answers: Answers, workspace: str | None
    ) -> Conversation:
        start, offered = self._start, tools.definitions()
        system = system_text(start, workspace=workspace, sections=self._sections(answers), notes=self._notes)
        head = [canonical(instructions_text(system))] if system else []
        models = ModelCalls(
            ids=self._ids,
            start=start,
            tools=tools.definitions,
            journal=journal,
            gates=self._gates,
            run=self._run,
            stop=self._stop,
        )
        compaction = Compaction(
            ids=self._ids,
            models=models,
            transcript=transcript,
            pinned=pinned_entries(start),
            beside_tokens=(sum(map(len, head)) + len(offered)) // limits.BYTES_PER_TOKEN,
            model_call_bytes=start.limits.model_call_bytes,
            record_entry_bytes=start.limits.record_entry_bytes,
        )
        return Conversation(head, transcript, models, compaction)

    def _workspace(self) -> str | None:
        """Where commands start; None when the session has no sandbox, or we were given none to run them in."""
        agent = self._start.agent
        if self._sandbox is None:
            return None
        if agent is not None and agent.sandbox is not None:
            return agent.sandbox.workspace
        return AgentSandbox().workspace if self._start.routing.sandbox is not None else None

    def _providers(self, workspace: str | None) -> Iterator[ToolProvider]:
        files = SkillFiles(self._requests, self._files, self._start.limits.chunk_bytes)
        mounts = SkillMounts(self._skills, files, self._sandbox if workspace is not None else None, self._stop)
        if self._sandbox is not None and workspace is not None:
            trace = self._start.trace
            traceparent = trace.traceparent if trace else None
            yield SandboxTools(self._sandbox, workspace, traceparent, self._stop, self._skills, mounts)
        if self._skills:
            yield SkillTools(self._skills, files, mounts)
        yield self._artifact_tools()
        if self._start.memory is not None:
            yield MemoryTools.of(self._start.memory)
        if self._start.agent is not None and self._start.agent.self_wake:
            yield WakeTools()
        yield HttpTools(self._start.manifest, self._ids.turn_id, self._gate)
        yield self._mcp

    def _sections(self, answers: Answers) -> Iterator[str]:
        """Of the system text, one for each thing that is there."""
        yield self._artifact_tools().section()
        if self._start.memory is not None:
            yield memory_section(self._start.memory)
        yield self._skills.section()
        yield self._mcp.section()
        yield answers.section()
