"""``schedule_wake``: the session is sent a note of its own at a later time (Harness API v5, section 4). Core keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.effects import RuntimeTarget
from pod_host.contract.open_points import WAKE_DELAY
from pod_host.errors import InputIssue
from pod_host.turn.checking import OwnSchema
from pod_host.turn.runtime_calls import run_by_core
from pod_host.turn.toolset import Tool

NAME: Final = "schedule_wake"
_INPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "in": {"type": "string", "description": "How long from now: a number and s, m, h or d, such as 90s, 15m, 2h."},
        "at": {"type": "string", "description": "Or when: ISO 8601 with an offset, such as 2031-05-04T08:00:00Z."},
        "note": {"type": "string", "minLength": 1, "description": "The message that you will get then."},
        "cancel": {"const": True, "description": "Alone: take back the wake that is set."},
    },
    "additionalProperties": False,
}
_SCHEMA: Final = OwnSchema(_INPUT)


class WakeTools:
    """Offered only with ``agent.selfWake``."""

    def tools(self) -> Iterable[Tool]:
        yield Tool(
            name=NAME,
            description=(
                "Wakes you later in this conversation, with a note to yourself as the message. Give note and exactly one"
                " of in and at; or cancel alone. There is one wake: another replaces it."
            ),
            input_schema=_INPUT,
            target=RuntimeTarget(kind="runtime", operation="schedule_wake"),
            parallel=True,
            check=_check,
            run=run_by_core,
        )


def _check(arguments: JsonObject) -> Sequence[InputIssue]:
    issues = _SCHEMA.issues(arguments)
    if issues or set(arguments) == {"cancel"}:
        return issues
    if "cancel" in arguments:
        return [InputIssue(path=["cancel"], code="alone", message="cancel stands alone")]
    if ("in" in arguments) == ("at" in arguments):
        issues.append(InputIssue(path=[], code="one_of", message="exactly one of in and at is needed"))
    elif "in" in arguments and not WAKE_DELAY.fullmatch(arguments["in"].strip()):
        text = "a number and a unit are needed, such as 90s, 15m, 2h or 1d"
        issues.append(InputIssue(path=["in"], code="duration", message=text))
    elif "at" in arguments and not _is_moment(arguments["at"]):
        text = "an ISO 8601 time with an offset is needed, such as 2031-05-04T08:00:00Z"
        issues.append(InputIssue(path=["at"], code="date_time", message=text))
    if "note" not in arguments:
        issues.append(InputIssue(path=["note"], code="required", message="a note is needed"))
    return issues


def _is_moment(text: Json) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
