"""What a run tells of itself, and what the processes under test told of themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pod_host.contract.base import JsonObject


@dataclass
class Report:
    seconds: float = 0.0
    totals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    hosts: int = 0
    effects: int = 0
    rests: list[JsonObject] = field(default_factory=list)

    def lines(self) -> list[str]:
        turns = sum(count for name, count in self.totals.items() if name.startswith("turn."))
        execs = sum(count for name, count in self.totals.items() if name.startswith("exec "))
        return [
            f"{self.seconds:.0f} s, {turns} turns with {self.effects} effects, {execs} calls of clients, "
            f"{(self.effects + execs) / max(self.seconds, 1.0):.1f} a second; {self.hosts} hosts",
            f"faults: {self.faults.total()}: {dict(sorted(self.faults.items()))}",
            f"ends: {dict(sorted(self.totals.items()))}",
            *[f"not here: {kind}: {why}" for kind, why in self.skipped.items()],
        ]


class LogFile:
    """``news``: the lines since it was asked last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def tail(self, lines: int) -> list[str]:
        return self._path.read_text(errors="replace").splitlines()[-lines:] if self._path.exists() else []
