"""What the model answered, read for the loop: its text and its tool calls (Harness API v5, sections 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import ModelFailure
from pod_host.turn.blocks import in_shape
from pod_host.turn.projection import json_text
from pod_host.turn.text import readable

_MEMBERS = {"finishReason": str, "usage": dict, "evidence": dict}
_NAME_CHARACTERS = 256  # of a call's id and name: longer ones are no names, and results carry both


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. ``index``: its place among the answer's calls. ``cut``: the answer ended within it."""

    index: int
    id: str
    name: str
    args: Json
    cut: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """``wire`` is what the transcript keeps: the answer as it came, but for what is not in its shape, and calls without a
    usable id or name."""

    wire: JsonObject
    calls: tuple[Call, ...]

    @property
    def text(self) -> str:
        """The text blocks, one after the other with nothing between; a JSON block as its text."""
        return "".join(_shown(block) for block in self.wire["output"])


def read_candidate(value: Json) -> Candidate | None:
    """A ModelCandidate or a bare text, as a model effect's outcome holds it; None for anything else."""
    if isinstance(value, str):
        value = {"output": [{"type": "text", "text": value}]}
    blocks = value.get("output") if isinstance(value, dict) else None
    if not isinstance(blocks, list):
        return None
    output: list[JsonObject] = []
    calls: list[Call] = []
    for place, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") == "tool-call":
            index = len(calls)
            call_id, name = _named(block.get("id"), f"call-{index}"), _named(block.get("name"), "unnamed")
            cut = value.get("finishReason") == "length" and place == len(blocks) - 1
            calls.append(Call(index, call_id, name, block.get("args"), cut))
            block = {**block, "id": call_id, "name": name}
        shaped = in_shape(block)
        if shaped is not None:
            output.append(shaped)
    wire = {name: value[name] for name, kind in _MEMBERS.items() if isinstance(value.get(name), kind)}
    if "usage" in wire:
        wire["usage"] = {name: count for name, count in wire["usage"].items() if _is_count(count)}
    return Candidate({**wire, "output": output}, tuple(calls))


def unusable(candidate: Candidate, *, may_be_silent: bool) -> ModelFailure | None:
    """Why an answer cannot stand, as the failure it amounts to; None for one that can. ``may_be_silent``: after its tools'
    results a model may be done without another word."""
    finish = candidate.wire.get("finishReason")
    if finish == "content-filter":
        return _failure("content_policy", "The provider's content filter stopped the model's answer.", again=False)
    if len(candidate.calls) > limits.ANSWER_CALLS:
        text = f"The model's answer holds {len(candidate.calls)} tool calls, more than {limits.ANSWER_CALLS}."
        return _failure("invalid_output", text, again=True)
    if candidate.calls or candidate.text.strip():
        return None
    if finish == "length":
        return _failure("invalid_output", "The model's answer reached its length limit before a word.", again=False)
    if finish == "other":
        return _failure("invalid_output", "The model's answer ended early, before a word.", again=True)
    return None if may_be_silent else _failure("invalid_output", "The model's answer is empty.", again=True)


def _failure(code: str, message: str, *, again: bool) -> ModelFailure:
    return ModelFailure(kind="failed", code=code, message=message, retryable=again)


def _named(value: Json, otherwise: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_CHARACTERS:
        return otherwise
    return readable(value)


def _is_count(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(block: JsonObject) -> str:
    if block["type"] == "json":
        return json_text(block["value"])
    text: str = block["text"] if block["type"] == "text" else ""
    return text
