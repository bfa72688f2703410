"""Makes the agent loops of a segment: the session's own, and those of agents used as tools. They share the run, the journal,
the sandbox and the stop; each has its own instructions, tools, servers, skills and conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.turn_start import AgentSandbox, McpFacts, TurnStart
from pod_host.turn.agent_tools import AgentTools, message_entry, start_of, task_section
from pod_host.turn.agents import UsedAgent
from pod_host.turn.answers import Answers
from pod_host.turn.artifact_tools import ArtifactTools
from pod_host.turn.artifacts import Artifacts
from pod_host.turn.compaction import Compaction
from pod_host.turn.conversation import Conversation
from pod_host.turn.endings import TurnFailure
from pod_host.turn.http_tools import HttpTools
from pod_host.turn.identity import Identities
from pod_host.turn.journal import Journal
from pod_host.turn.loop import AgentLoop, Answered
from pod_host.turn.mcp_tools import McpTools
from pod_host.turn.memory import MemoryTools, memory_section, pinned_entries
from pod_host.turn.model_calls import ModelCalls
from pod_host.turn.outputs_folder import NAME as OUTPUTS
from pod_host.turn.ports import GatePort, RunPort, SandboxPort
from pod_host.turn.projection import Reader, instructions_text
from pod_host.turn.prompt import system_text
from pod_host.turn.requests import Requests
from pod_host.turn.sandbox_tools import SandboxTools
from pod_host.turn.shaping import Shaper
from pod_host.turn.skill_files import FileCache, SkillFiles, SkillMounts
from pod_host.turn.skill_tools import SkillTools
from pod_host.turn.skills import Skills
from pod_host.turn.state import steps_before
from pod_host.turn.stop import IN_HAND, Stop
from pod_host.turn.tool_calls import ToolCalls
from pod_host.turn.tool_gate import ToolGate
from pod_host.turn.tool_search import with_search
from pod_host.turn.toolset import ToolProvider, Toolset
from pod_host.turn.transcripts import SegmentTranscript
from pod_host.turn.wakes import WakeTools
from pod_host.turn.workspace_files import WorkspaceFiles


@dataclass(frozen=True, slots=True)
class Segment:
    """What all loops of a segment share. ``start``: the turn's own. ``sandbox`` None: the session has none, so no sandbox
    tools are offered. ``notes``: the host's sentences for the model. ``mounting``: held while a skill is mounted, so that
    agents which share one do not mount it twice. ``began``: by the event loop's clock."""

    start: TurnStart
    run: RunPort
    gates: GatePort
    sandbox: SandboxPort | None
    stop: Stop
    requests: Requests
    journal: Journal
    gate: ToolGate
    artifacts: Artifacts
    files: FileCache
    notes: Sequence[str]
    mounting: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def workspace(self) -> str | None:
        """Where commands start; None without a sandbox."""
        if self.sandbox is None:
            return None
        agent = self.start.agent
        return (agent.sandbox if agent and agent.sandbox else AgentSandbox()).workspace

    @property
    def workspace_files(self) -> WorkspaceFiles | None:
        return None if self.sandbox is None else WorkspaceFiles(self.sandbox, self.stop)


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop in the making. ``start``: the turn as its agent sees it. ``used``: the agent, when it is used as a tool;
    None: it is the session's own. ``agents``: those that it uses."""

    segment: Segment
    start: TurnStart
    facts: McpFacts
    ids: Identities
    transcript: SegmentTranscript
    reader: Reader
    agents: Sequence[UsedAgent]
    used: UsedAgent | None = None

    def make(self) -> AgentLoop:
        """Raises TurnFailure when the agent's outputSchema is broken."""
        start, segment = self.start, self.segment
        state, entries = start.checkpoint.state, self.transcript.entries
        skills = self._skills()
        tools = with_search(Toolset(self._providers(skills)), state, entries, self.reader.call_bytes // 4)
        answers = Answers(start.manifest, self.ids.turn_id, entries)
        return AgentLoop(
            ids=self.ids,
            conversation=self._conversation(tools, skills, answers),
            tools=ToolCalls(
                ids=self.ids,
                tools=tools,
                journal=segment.journal,
                gates=segment.gates,
                stop=segment.stop,
                record_entry_bytes=start.limits.record_entry_bytes,
                shaper=Shaper(Artifacts(segment.requests, start.limits.chunk_bytes, IN_HAND), self.reader),
            ),
            transcript=self.transcript,
            answers=answers,
            stop=segment.stop,
            steps=steps_before(state, self.ids.turn_id, entries),
            began=segment.began,
            most_steps=limits.AGENT_STEPS if self.used else None,
        )

    def _conversation(self, tools: Toolset, skills: Skills, answers: Answers) -> Conversation:
        start, segment, offered = self.start, self.segment, tools.definitions()
        sections = self._sections(skills, answers)
        system = system_text(
            start,
            workspace=segment.workspace,
            sections=sections,
            notes=segment.notes,
            plain_http=segment.sandbox is not None and segment.sandbox.plain_http,
        )
        head = [canonical(instructions_text(system))] if system else []
        models = ModelCalls(
            ids=self.ids,
            start=start,
            tools=tools.definitions,
            journal=segment.journal,
            gates=segment.gates,
            run=segment.run,
            stop=segment.stop,
            choice=canonical(self.used.model.wire()) if self.used and self.used.model else None,
        )
        compaction = Compaction(
            ids=self.ids,
            models=models,
            transcript=self.transcript,
            pinned=pinned_entries(start),
            beside_tokens=(sum(map(len, head)) + len(offered)) // limits.BYTES_PER_TOKEN,
            model_call_bytes=start.limits.model_call_bytes,
            record_entry_bytes=start.limits.record_entry_bytes,
        )
        return Conversation(head, self.transcript, models, compaction)

    def _providers(self, skills: Skills) -> Iterator[ToolProvider]:
        start, segment = self.start, self.segment
        sandbox, workspace = segment.sandbox, segment.workspace
        files = SkillFiles(segment.requests, segment.files, start.limits.chunk_bytes)
        mounts = SkillMounts(skills, files, sandbox, segment.stop, segment.mounting)
        if sandbox is not None and workspace is not None:
            yield SandboxTools(sandbox, workspace, start.traceparent, segment.stop, skills, mounts)
        if skills:
            yield SkillTools(skills, files, mounts)
        yield self._artifact_tools()
        if start.memory is not None:
            yield MemoryTools.of(start.memory)
        if start.agent is not None and start.agent.self_wake:
            yield WakeTools()
        yield HttpTools(start.manifest, self.ids.turn_id, segment.gate, self.used.id if self.used else None)
        yield AgentTools(self.agents, self._run_agent)
        yield self._mcp()

    def _sections(self, skills: Skills, answers: Answers) -> Iterator[str]:
        """Of the system text, one for each thing that is there."""
        if self.used:
            yield task_section()
        yield self._artifact_tools().section()
        if self.start.memory is not None:
            yield memory_section(self.start.memory)
        yield skills.section()
        yield self._mcp().section()
        yield answers.section()

    def _skills(self) -> Skills:
        sandbox = self.segment.sandbox
        return Skills.of(self.start.manifest, sandbox.skills_dir if sandbox else None)

    def _artifact_tools(self) -> ArtifactTools:
        segment = self.segment
        outputs = f"{segment.workspace}/{OUTPUTS}" if segment.workspace is not None else None
        return ArtifactTools(segment.artifacts, self.reader, segment.workspace_files, outputs)

    def _mcp(self) -> McpTools:
        agent_id = self.used.id if self.used else self.ids.agent_id
        return McpTools(self.facts, agent_id, self.segment.gate, used=self.used is not None)

    async def _run_agent(self, agent: UsedAgent, arguments: JsonObject, effect_id: str) -> Json:
        """As `RunAgent` says: in a conversation of its own, which is gone with its last answer."""
        start = start_of(agent, self.segment.start)
        reader = Reader.of(start)
        loop = replace(
            self,
            start=start,
            ids=self.ids.of_agent(effect_id),
            transcript=SegmentTranscript([], reader),
            reader=reader,
            agents=agent.agents,
            used=agent,
        ).make()
        end = await loop.run([*pinned_entries(start), message_entry(arguments, self.ids.turn_id)])
        if isinstance(end, Answered):
            return end.output
        code = "too_many_steps" if end.steps >= limits.AGENT_STEPS else "too_slow"
        raise TurnFailure(code, f"It had no last answer after {end.steps} answers")
