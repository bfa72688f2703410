"""What a model is to the Model Gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from pod_host.contract.base import JsonObject
from pod_host.contract.model_call import ModelFailureCode
from pod_host.contract.turn_start import ModelDescriptor

FileReader: TypeAlias = Callable[[JsonObject], Awaitable[tuple[bytes, str]]]
"""A media part's reference to its bytes and media type. Raises LookupError when the session has no such file."""

ModelAnswer: TypeAlias = JsonObject
"""A ModelCandidate, or a failure ``{kind: "failed", code, message, retryable, retryAfterMs?}`` (section 5)."""


class Model(Protocol):
    @property
    def descriptor(self) -> ModelDescriptor: ...

    async def answer(self, call: JsonObject, *, effect_id: str, files: FileReader) -> ModelAnswer:
        """Answer one ModelCall. A provider's refusal is an answer, never an exception; cancellation ends the call."""
        ...


class ModelRefusal(Exception):
    """A call that must fail before anything is sent. Stays within a model: the gate gets ``failed`` of it."""

    def __init__(self, code: ModelFailureCode, message: str) -> None:
        super().__init__(message)
        self.code: ModelFailureCode = code


def failed(
    code: ModelFailureCode, message: str, *, retryable: bool = False, retry_after_ms: int | None = None
) -> ModelAnswer:
    answer: ModelAnswer = {"kind": "failed", "code": code, "message": message, "retryable": retryable}
    return answer if retry_after_ms is None else {**answer, "retryAfterMs": retry_after_ms}
