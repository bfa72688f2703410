"""TurnStart: the input of a leased run (Harness API v5, section 3). Read leniently."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pod_host import limits as numbers
from pod_host.contract.base import Count, Id, Json, JsonObject, Received
from pod_host.contract.open_points import memory_index


class HarnessLimits(Received):
    """The Runtime limits of the segment, in bytes of JSON text (``folder_entries``: a count)."""

    record_entry_bytes: Annotated[int, Field(gt=0)] = numbers.RECORD_ENTRY_BYTES
    model_call_bytes: Annotated[int, Field(gt=0)] = numbers.MODEL_CALL_BYTES
    model_file_bytes: Annotated[int, Field(gt=0)] = numbers.MODEL_FILE_BYTES
    tool_answer_bytes: Annotated[int, Field(gt=0)] = numbers.TOOL_ANSWER_BYTES
    harness_state_bytes: Annotated[int, Field(gt=0)] = numbers.HARNESS_STATE_BYTES
    chunk_bytes: Annotated[int, Field(gt=0)] = numbers.CHUNK_BYTES
    folder_entries: Annotated[int, Field(gt=0)] = numbers.FOLDER_ENTRIES


class ModelDescriptor(Received):
    """The model of a call that names none. ``inputs``: the kinds it reads; window and output limit in tokens."""

    provider: str
    id: str
    inputs: list[str] = ["text"]
    context_window: Annotated[int, Field(gt=0)] | None = None
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    reasoning: Json = None


class Checkpoint(Received):
    """Where the session stands. ``input``: a string, ``{text}``, ``{content}``, ``{kind: "messages", messages}`` or
    ``{kind: "continue"}``. ``state``: what our last output left, as it was."""

    session_id: Id
    turn_id: Id
    segment: Count
    manifest_hash: str = ""
    input: Json = None
    state: Json = None


class RecordedOutcome(Received):
    """A completed effect of this segment: replay it without asking core again."""

    effect_id: Id
    request_hash: str
    outcome: JsonObject


class TranscriptCursor(Received):
    cursor: int = -1


class SessionSandbox(Received):
    """The session's sandbox (``routing.sandbox``): its owner and Agent, its spec, and every command's variables."""

    owner_id: str = ""
    environment_id: str | None = None
    spec: JsonObject | None = None
    environment: dict[str, str] = {}


class Routing(Received):
    root_manifest: JsonObject = {}
    sandbox: SessionSandbox | None = None


class AgentSandbox(Received):
    workspace: str = "/workspace"


class TurnAgent(Received):
    id: str
    kind: str = "pod"
    sandbox: AgentSandbox | None = None
    self_wake: bool = False


class TurnMemory(Received):
    """The Agent's memory. ``index``: one line per memory, newest first."""

    access: Literal["read_write", "read_only"]
    instructions: str | None = None
    index: str = ""
    truncated: bool = False

    @field_validator("index", mode="before")
    @classmethod
    def _index(cls, value: Json) -> str:
        return memory_index(value)


class Trace(Received):
    traceparent: str
    tracestate: str | None = None


class TurnOptions(Received):
    fixture_model: bool = False


class McpTool(Received):
    name: str
    description: str | None = None
    input_schema: JsonObject = {}
    output_schema: JsonObject | None = None
    annotations: JsonObject | None = None
    enabled: bool = True
    deferred: bool | None = None


class McpServer(Received):
    agent_id: str | None = None
    name: str
    instructions: str | None = None
    tools: list[McpTool] = []


class McpFacts(Received):
    servers: list[McpServer] = []


class Definition(Received):
    name: str
    version: Json = None


class TurnStart(Received):
    """The turn as it begins or goes on. ``type``: ``turn.start`` or ``approval.answer``. A custom harness gets turns
    of ``engine: "agent"`` only."""

    type: str = "turn.start"
    engine: str = "agent"
    manifest: JsonObject = {}
    definition: Definition | None = None
    loop: Json = None
    memory: TurnMemory | None = None
    checkpoint: Checkpoint
    outcomes: list[RecordedOutcome] = []
    transcript: TranscriptCursor = TranscriptCursor()
    mcp: McpFacts | None = None
    routing: Routing = Routing()
    agent: TurnAgent | None = None
    options: TurnOptions = TurnOptions()
    trace: Trace | None = None
    limits: HarnessLimits = HarnessLimits()
    model: ModelDescriptor | None = None

    @property
    def traceparent(self) -> str | None:
        """The turn's own, for what has none of its call."""
        return self.trace.traceparent if self.trace else None
