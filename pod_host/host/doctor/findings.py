"""What the doctor found: one line each, as a table for people and as data for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

State = Literal["ok", "note", "warning", "failure"]
_SHOWN: Final[dict[State, str]] = {"ok": "ok", "note": "-", "warning": "warn", "failure": "FAIL"}


@dataclass(frozen=True)
class Finding:
    """``subject``: environment, join, network, clock, disk, kernel, confinement, clients. ``note``: a fact that is neither
    good nor bad. ``failure``: something would not work."""

    subject: str
    name: str
    state: State
    says: str


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps({"ok": is_well(findings), "findings": [asdict(finding) for finding in findings]}, indent=2)


def as_table(findings: Sequence[Finding]) -> str:
    width = max((len(finding.name) for finding in findings), default=0)
    lines: list[str] = []
    subject = ""
    for finding in findings:
        if finding.subject != subject:
            subject = finding.subject
            lines += ["", subject]
        lines.append(f"  {_SHOWN[finding.state]:<4}  {finding.name:<{width}}  {finding.says}")
    count = {state: sum(finding.state == state for finding in findings) for state in _SHOWN}
    lines += ["", f"{count['failure']} failed, {count['warning']} warned, {count['ok']} well"]
    return "\n".join(lines).lstrip("\n")


def is_well(findings: Sequence[Finding]) -> bool:
    return all(finding.state != "failure" for finding in findings)
