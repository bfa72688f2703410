"""Names that are not UTF-8: how they are shown, and how a shown one is found again.

A name is bytes, and an answer is text: each byte that is no UTF-8 is shown as U+FFFD. Who then names the file as it was
shown means that file. Inside, such a name is text with surrogate escapes (`os.fsdecode`), which no answer may hold.
"""

from __future__ import annotations

import os
import re

from pod_host.sandbox.outcomes import Completed, Failed, Json, Outcome
from pod_host.sandbox.tools.workspace import ToolFailure

_UNKNOWN = "\ufffd"
_HALVES = re.compile("[\ud800-\udfff]")


def find_shown(path: str) -> str:
    """The path that ``path`` (absolute, normalised) shows; itself when it is there, or when nothing is shown so.

    Raises ``ToolFailure`` ``sandbox.not_found`` when several names are shown alike."""
    if _UNKNOWN not in path or os.path.lexists(path):
        return path
    found = "/"
    for part in path.split("/"):
        entry = os.path.join(found, part)
        found = _entry(found, part) if _UNKNOWN in part and not os.path.lexists(entry) else entry
    return found


def _entry(directory: str, shown: str) -> str:
    try:
        names = [name for name in os.listdir(os.fsencode(directory)) if name.decode("utf-8", "replace") == shown]
    except OSError:
        names = []
    if len(names) > 1:
        raise ToolFailure(
            "sandbox.not_found",
            f"{len(names)} names in {as_shown(directory)} are shown as {shown}. Rename one with bash.",
        )
    return os.path.join(directory, os.fsdecode(names[0]) if names else shown)


def as_shown(text: str) -> str:
    """``text`` with each byte that is no UTF-8, and each half of a surrogate pair, as U+FFFD."""
    try:
        return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return _HALVES.sub(_UNKNOWN, text)


def outcome_as_shown(outcome: Outcome) -> Outcome:
    """A tool's answer, whose texts may name files."""
    if isinstance(outcome, Failed):
        return Failed(outcome.code, as_shown(outcome.message))
    return Completed(_shown(outcome.output))


def _shown(output: Json) -> Json:
    if isinstance(output, str):
        return as_shown(output)
    if isinstance(output, dict):
        return {name: _shown(value) for name, value in output.items()}
    return output
