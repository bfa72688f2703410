"""The turn's result: the model's last text, or, where the manifest has an ``outputSchema``, the JSON value that it holds
(Harness API v5, sections 5 and 7: the gate adds no instruction and repairs nothing).

An answer that does not fit is corrected at most twice. A correction is an ``input`` entry of the turn, marked in its
metadata: so it is in the prompt where it was said, in this segment, in a later one and in later turns alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical
from pod_host.contract.encoding import decode
from pod_host.contract.transcript import Entry, InputEntry
from pod_host.errors import ContractViolation
from pod_host.turn.checking import SchemaFault, pointer
from pod_host.turn.endings import TurnFailure

if TYPE_CHECKING:
    from pod_host.turn.schemas import Schema

_MARK: Final = {"podHost": "output-correction"}  # the metadata of a correction
_FENCED: Final = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)
_SHOWN: Final = 5  # faults that a correction names


@dataclass(frozen=True, slots=True)
class Fits:
    """``output``: the turn's result."""

    output: Json


@dataclass(frozen=True, slots=True)
class Misfit:
    """``why``: what does not fit, in words for the model and for people."""

    why: str


class Answers:
    """What an answer of this turn must be. ``corrections``: how many the turn has had."""

    def __init__(self, manifest: JsonObject, turn_id: str, entries: Iterable[Entry]) -> None:
        """``entries``: of the transcript, as the segment begins. Raises TurnFailure ``output.invalid_schema``."""
        self._turn_id = turn_id
        self._schema: Schema | None = None
        self._text = ""
        self.corrections = sum(_is_correction(entry) and entry.get("turnId") == turn_id for entry in entries)
        given = manifest.get("outputSchema")
        if given is None:
            return
        from pod_host.turn.schemas import Schema

        try:
            self._schema = Schema(given)
        except SchemaFault as fault:
            raise _broken(fault) from fault
        self._text = canonical(given).decode()

    def section(self) -> str:
        """What the prompt says of it; empty for a plain text."""
        if self._schema is None:
            return ""
        return (
            "# Output\n"
            "Your last answer, the one without tool calls, is read by a program: one JSON value and nothing around it, no"
            f" words and no fence. It must fit this JSON Schema:\n{self._text}"
        )

    def read(self, text: str) -> Fits | Misfit:
        """``text`` as the turn's result. Raises TurnFailure ``output.invalid_schema`` when the schema proves broken."""
        if self._schema is None:
            return Fits(text)
        fenced = _FENCED.fullmatch(text)
        try:
            value = decode(fenced[1] if fenced else text.strip())
        except ContractViolation as fault:
            return Misfit(f"the answer is not one JSON value ({fault})")
        try:
            issues = self._schema.issues(value)
        except SchemaFault as fault:
            raise _broken(fault) from fault
        if not issues:
            return Fits(value)
        more = f"; and {len(issues) - _SHOWN} more" if len(issues) > _SHOWN else ""
        return Misfit("; ".join(f"{pointer(issue['path'])}: {issue['message']}" for issue in issues[:_SHOWN]) + more)

    def correction(self, misfit: Misfit) -> Entry:
        """What the model is told. Raises TurnFailure ``output.invalid`` when it was told often enough."""
        if self.corrections >= limits.OUTPUT_CORRECTIONS:
            text = (
                f"The answer does not fit the agent's output schema, after {self.corrections} corrections: {misfit.why}"
            )
            raise TurnFailure("output.invalid", text)
        self.corrections += 1
        event: JsonObject = {
            "kind": "user-message",
            "text": f"<output-correction>\nYour answer does not fit the output's JSON Schema: {misfit.why}.\n"
            "Answer again with the one JSON value alone.\n</output-correction>",
            "metadata": dict(_MARK),
        }
        return InputEntry(kind="input", turn_id=self._turn_id, event=event).wire()


def _is_correction(entry: Entry) -> bool:
    event = entry.get("event")
    return entry.get("kind") == "input" and isinstance(event, dict) and event.get("metadata") == _MARK


def _broken(fault: SchemaFault) -> TurnFailure:
    return TurnFailure("output.invalid_schema", f"The agent's outputSchema cannot be used: {fault}")
