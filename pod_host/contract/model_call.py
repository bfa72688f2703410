"""Model calls: what the Model Gate takes and answers (Harness API v5, section 5).

Prompts and answers are JSON objects here, not models: they are large, hashed and kept byte for byte. The functions build
their parts; `ModelCandidate` and `ModelFailure` read an answer.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from pod_host.contract.base import Id, Json, JsonObject, Received, Sent, Text1

MODEL_CALLS_PATH = "/nylorun/v1/model-calls"
TOOL_CALLS_PATH = "/nylorun/v1/tool-calls"
HTTP_CALLS_PATH = "/nylorun/v1/http-calls"
MCP_CONNECT_PATH = "/nylorun/v1/mcp/connect"
MCP_LIST_PATH = "/nylorun/v1/mcp/list"
MCP_CLOSE_PATH = "/nylorun/v1/mcp/close"

GATE_ERROR_CODES: frozenset[str] = frozenset(
    {
        "invalid_request",
        "key_required",
        "gate_unauthorized",
        "gate_forbidden",
        "run_stale",
        "gate_conflict",
        "effect_not_journaled",
        "host_rejected",
    }
)

# --- Parts and items of a prompt ---------------------------------------------------------------------------------------


class TextPart(Sent):
    type: Literal["text"]
    text: str
    provider_metadata: Json = None


class ReasoningPart(Sent):
    type: Literal["reasoning"]
    text: str
    provider_metadata: Json = None


class MediaPart(Sent):
    type: Literal["media"]
    media_type: Text1
    reference: JsonObject


class ToolCallPart(Sent):
    type: Literal["tool-call"]
    id: Text1
    name: Text1
    args: JsonObject
    provider_metadata: Json = None


Part: TypeAlias = Annotated[TextPart | ReasoningPart | MediaPart | ToolCallPart, Field(discriminator="type")]


class Producer(Sent):
    provider: str
    api: str | None = None
    model: str


class InstructionsItem(Sent):
    kind: Literal["instructions"]
    role: Literal["system"]
    content: list[Part]


class MessageItem(Sent):
    kind: Literal["message"]
    role: Literal["user", "assistant"]
    content: list[Part]
    producer: Producer | None = None


class ToolResultItem(Sent):
    kind: Literal["tool-result"]
    tool_call_id: Text1
    tool_name: Text1
    status: Literal["completed", "denied", "failed"]
    content: list[Part]


class ContextItem(Sent):
    kind: Literal["context"]
    role: Literal["user"]
    content: list[Part]


PromptItem: TypeAlias = Annotated[
    InstructionsItem | MessageItem | ToolResultItem | ContextItem, Field(discriminator="kind")
]


class ToolDefinition(Sent):
    """A tool as the model is offered it."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    input_schema: JsonObject


class ModelControls(Sent):
    temperature: float | None = None
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None


class ModelChoice(Sent):
    id: str | None = None
    controls: ModelControls | None = None
    config: JsonObject | None = None


class ModelCall(Sent):
    """``execution_id`` is the session's id."""

    prompt: list[PromptItem]
    tools: list[ToolDefinition]
    model: ModelChoice | None = None
    execution_id: Id


class ModelCallBody(Sent):
    """The body of ``POST model-calls``, strict."""

    effect_id: Id
    invocation_id: Id
    call: ModelCall


# --- Kinds of files -----------------------------------------------------------------------------------------------------

_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript"}
)
_OFFICE_TYPES = (
    "application/vnd.openxmlformats-officedocument.",
    "application/vnd.oasis.opendocument.",
    "application/vnd.ms-",
)


def input_kind(media_type: str) -> str:
    """What a file is, as ``model.inputs`` names kinds (section 3): text, image, pdf, office, audio, video; a type that is
    none of them is its own kind, which no model reads. A text file is never sent as a media part."""
    plain = media_type.split(";")[0].strip().lower()
    major = plain.split("/")[0]
    if major in ("image", "audio", "video") and plain != "image/svg+xml":
        return major
    if plain == "application/pdf":
        return "pdf"
    if plain == "application/msword" or plain.startswith(_OFFICE_TYPES):
        return "office"
    if major == "text" or plain in _TEXT_TYPES or plain.endswith(("+json", "+xml")):
        return "text"
    return plain


# --- Answers -----------------------------------------------------------------------------------------------------------

ModelFailureCode = Literal[
    "context_overflow",
    "rate_limited",
    "overloaded",
    "timeout",
    "transient",
    "content_policy",
    "auth",
    "invalid_request",
    "invalid_output",
    "unsupported_input",
]


class Usage(Received):
    """Tokens; ``cost_usd`` in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None


class ModelCandidate(Received):
    """The model's answer. ``output`` blocks stay as they came: the gate needs their provider metadata back."""

    output: list[JsonObject]
    finish_reason: str | None = None
    usage: Usage | None = None
    evidence: JsonObject | None = None


class ModelFailure(Received):
    """A failure is a completed effect. ``retry_after_ms``: milliseconds to wait before another try."""

    kind: Literal["failed"]
    code: str
    message: str = ""
    retryable: bool = False
    retry_after_ms: float | None = None


# --- Tool Gate bodies --------------------------------------------------------------------------------------------------


class ServerName(Sent):
    """A server that the agent declares, never a URL."""

    agent_id: Text1 | None = None
    server_name: Text1


def server_name(name: str, agent_id: str | None) -> ServerName:
    """``agent_id``: of the agent used as a tool that declares it; None: the session's own agent does."""
    return ServerName(server_name=name) if agent_id is None else ServerName(server_name=name, agent_id=agent_id)


class McpConnectBody(Sent):
    server: ServerName


class McpListBody(Sent):
    server: ServerName
    cursor: str | None = None


class McpCloseBody(Sent):
    server: ServerName


class ToolCallBody(Sent):
    """``POST tool-calls``: ``name`` is the tool's raw name on the server, the intent's ``target.tool``."""

    server: ServerName
    effect_id: Id
    name: Text1
    arguments: JsonObject


class ToolGateAnswer(Received):
    """``{ok: true, result}`` or ``{ok: false, error}``: a tool's failure is an answer, not a gate error."""

    ok: bool
    result: Json = None
    error: JsonObject | None = None
