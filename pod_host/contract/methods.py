"""Every request and message of Harness API v5, with the shapes of its params and its answer.

``HARNESS_ASKS``: a harness sends, core serves. ``CORE_ASKS``: core sends, a harness serves. ``CORE_SAYS``: core's one-way
messages. Each end checks what it is sent and what it is answered by these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pod_host.contract import artifacts, effects, output, transcript, work
from pod_host.contract.base import HALF_A_PAIR, Empty, Json, JsonObject, Wire, first_fault
from pod_host.contract.workspace import WORKSPACE_METHODS
from pod_host.errors import ContractViolation


@dataclass(frozen=True)
class Method:
    """``params`` and ``result`` check one JSON value and give its model; a ValidationError says what is wrong."""

    name: str
    params: Callable[[Json], Any]
    result: Callable[[Json], Any]

    def read_params(self, value: Json) -> Any:
        """Raises ContractViolation: ``Invalid <method> request: …``."""
        return self._read(self.params, value, "request")

    def read_result(self, value: Json) -> Any:
        """Raises ContractViolation: ``Invalid <method> answer: …``."""
        return self._read(self.result, value, "answer")

    def _read(self, check: Callable[[Json], Any], value: Json, what: str) -> Any:
        try:
            return check(value)
        except ValidationError as fault:
            raise ContractViolation(f"Invalid {self.name} {what}: {first_fault(fault)}") from None
        except UnicodeEncodeError:
            raise ContractViolation(f"Invalid {self.name} {what}: {HALF_A_PAIR}") from None


_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


def _object(value: Json) -> JsonObject:
    """Any object, an empty one as a rule."""
    return value if isinstance(value, dict) else _OBJECT.validate_python(value)


def _method(name: str, params: type[Wire], result: type[Wire] | None = None) -> Method:
    """``result`` None: any object."""
    return Method(name, params.model_validate, result.model_validate if result else _object)


def _table(*methods: Method) -> Mapping[str, Method]:
    return {method.name: method for method in methods}


HARNESS_ASKS = _table(
    _method("hello", work.HelloParams, work.HelloResult),
    _method("lease", Empty, work.LeaseResult),
    _method("lease.renew", work.RunParams, work.RenewResult),
    _method("lease.release", work.ReleaseParams),
    _method("effect.intent", effects.IntentParams, effects.IntentResult),
    _method("effect.outcome", effects.OutcomeParams, effects.OutcomeResult),
    _method("transcript.read", work.RunParams, transcript.TranscriptReadResult),
    _method("definition.file", work.DefinitionFileParams),
    _method("session.mcp", work.SessionMcpParams, work.SessionMcpResult),
    _method("event", work.EventParams),
    _method("artifact.read", artifacts.ArtifactReadParams, artifacts.ArtifactReadResult),
    Method("artifact.write", artifacts.ARTIFACT_WRITE.validate_python, artifacts.ArtifactWriteResult.model_validate),
    _method("turn.completed", output.TurnOutput, output.OutputResult),
    _method("turn.failed", output.TurnOutput, output.OutputResult),
    _method("turn.waiting", output.TurnOutput, output.OutputResult),
    _method("turn.paused", output.TurnOutput, output.OutputResult),
    _method("checkpoint", output.TurnOutput, output.OutputResult),
)

CORE_ASKS = _table(*(Method(name, _object, _object) for name in WORKSPACE_METHODS))

CORE_SAYS: Mapping[str, type[Wire]] = {"cancel": work.Cancel}
