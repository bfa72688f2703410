"""Effects: intents, their answers, outcomes (Harness API v5, section 4)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from pod_host.contract.base import Id, Json, JsonObject, Received, Sent, Sha256Hex, Text1

SANDBOX_TOOLS = ("bash", "read", "write", "edit", "grep", "glob")


class McpTarget(Sent):
    kind: Literal["mcp"]
    server: Text1
    tool: Text1


class HttpTarget(Sent):
    kind: Literal["http"]
    tool: Text1


class SandboxTarget(Sent):
    kind: Literal["sandbox"]


class HarnessTarget(Sent):
    kind: Literal["harness"]


class RuntimeTarget(Sent):
    kind: Literal["runtime"]
    operation: Literal["schedule_wake", "memory"]


Target: TypeAlias = McpTarget | HttpTarget | SandboxTarget | HarnessTarget | RuntimeTarget


class ModelContext(Sent):
    """``invocation_id``: the step that the model call is for."""

    invocation_id: Id


class ToolContext(Sent):
    call_id: Id
    invocation_id: Id
    step_id: Id | None = None


class AgentUsed(Sent):
    """An agent used as a tool that the effect works for."""

    id: Text1
    path: Json
    delegation_id: Text1 | None = None


class Intent(Sent):
    """What every intent carries. All of it is hashed: nothing in it may differ between two runs of one segment."""

    effect_id: Id
    session_id: Id
    turn_id: Id
    agent_id: Text1
    manifest_hash: str
    agent: AgentUsed | None = None


class ModelIntent(Intent):
    """Sent without ``input``; hashed with ``input`` set to its ModelCall."""

    kind: Literal["model"]
    context: ModelContext
    purpose: Literal["summary"] | None = None


class ToolIntent(Intent):
    """``input``: the call's arguments. ``tool_name`` is for display; core routes by ``target``."""

    any_json: ClassVar[frozenset[str]] = frozenset({"input"})
    kind: Literal["tool"]
    tool_name: Text1
    target: Annotated[Target, Field(discriminator="kind")] | None = None
    input: Json
    context: ToolContext
    skill: Text1 | None = None


class IntentParams(Sent):
    run_id: Id
    effect: Annotated[ModelIntent | ToolIntent, Field(discriminator="kind")]
    request_hash: Sha256Hex


class IntentResult(Received):
    """``execute``: run it (``rejoin``: send it to the gate again). ``completed``: use ``outcome``. ``pending`` and
    ``uncertain``: stop the segment with turn.waiting."""

    status: Literal["execute", "completed", "pending", "uncertain"]
    traceparent: str | None = None
    rejoin: bool = False
    outcome: JsonObject | None = None


class OutcomeParams(Sent):
    """Exactly one of ``value`` (any JSON, null too) and ``error`` (its fate could not be learned)."""

    any_json: ClassVar[frozenset[str]] = frozenset({"value"})
    run_id: Id
    effect_id: Id
    value: Json = None
    error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_of_value_and_error(cls, data: Any) -> Any:
        if isinstance(data, dict) and ("value" in data) == ("error" in data):
            raise ValueError("exactly one of value and error is needed")
        return data


class OutcomeResult(Received):
    """``outcome.value`` may differ from what was reported: core replaces its own tokens in it."""

    status: Literal["completed", "uncertain"]
    outcome: JsonObject | None = None


# --- Values of outcomes ----------------------------------------------------------------------------------------------


class ToolFile(Sent):
    """A file shown to the model after the text: ``reference`` is ``{artifactId, version, name?}``."""

    media_type: Text1
    reference: JsonObject


class ToolCompleted(Sent):
    any_json: ClassVar[frozenset[str]] = frozenset({"output"})
    kind: Literal["completed"]
    output: Json
    files: list[ToolFile] | None = None
    truncated: bool | None = None
    redacted: Json = None


class ToolFailed(Sent):
    kind: Literal["failed"]
    code: Text1
    message: str
    retryable: bool | None = None
    server: Json = None
    vault: Json = None
    redacted: Json = None


class ToolDenied(Sent):
    kind: Literal["denied"]
    reason: str


def tool_failure(code: str, message: str) -> JsonObject:
    """The outcome value of a tool call that failed, for the model to read."""
    return ToolFailed(kind="failed", code=code, message=message).wire()
