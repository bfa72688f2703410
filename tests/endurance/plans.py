"""What is asked of the sandbox, and what must then be true of the disk: a pure function of a random number generator.

Each call has a key of its own. A command writes its key into the ledger, a file that lies outside of all that is filled or
killed: so how often it ran is counted without asking whoever ran it. A turn's plan travels as its message; the model reads
it there, and the driver knows what comes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from pod_host.contract.base import JsonObject

FILLING: Final = "0123456789abcdef\n"
TIMED_OUT: Final = 124
MESSAGE_MARK: Final = '{"turn":'


@dataclass(frozen=True)
class Call:
    """``exits``: the code of a command that ran whole. ``leaves``: path and content after a write, or after the edit of one
    that was written before."""

    key: str
    tool: str
    args: JsonObject
    exits: int | None = None
    leaves: tuple[str, str] | None = None


@dataclass(frozen=True)
class Plan:
    """One turn: calls in steps, then a last word."""

    key: str
    steps: tuple[tuple[Call, ...], ...]

    @property
    def message(self) -> str:
        steps = [[{"key": call.key, "tool": call.tool, "args": call.args} for call in step] for step in self.steps]
        return json.dumps({"turn": self.key, "steps": steps})

    @property
    def answer(self) -> str:
        return f"end of {self.key}"


@dataclass(frozen=True)
class Planner:
    """``ledger``: a directory that commands may write. ``workspace``: where files are written. ``remote``: there are an HTTP
    tool and an MCP server."""

    ledger: Path
    workspace: Path
    remote: bool = True

    def turn(self, chance: Random, key: str) -> Plan:
        steps: list[tuple[Call, ...]] = []
        written: list[Call] = []
        for number in range(chance.randint(1, 4)):
            calls = [self._call(chance, f"{key}.{number}.{place}", written) for place in range(chance.randint(1, 3))]
            written += [call for call in calls if call.tool == "write"]
            steps.append(tuple(calls))
        return Plan(key, tuple(steps))

    def _call(self, chance: Random, key: str, written: list[Call]) -> Call:
        draw = chance.random()
        if written and draw < 0.15:
            return self.edit(key, written.pop(chance.randrange(len(written))))
        if draw < 0.40:
            return self.write(chance, key)
        if self.remote and draw < 0.50:
            return Call(key, chance.choice(("order", "order", "careful_order")), {"what": key})
        if self.remote and draw < 0.60:
            return Call(key, "library__add", {"title": key})
        if draw < 0.65:
            return Call(key, "grep", {"pattern": "^state:", "path": str(self.workspace)})
        if draw < 0.70:
            return Call(key, "glob", {"pattern": "**/*.txt", "path": str(self.workspace)})
        return self.command(chance, key)

    def write(self, chance: Random, key: str) -> Call:
        size = chance.choice((10, 2_000, 2_000, 30_000, 200_000))
        path = str(self.workspace / f"{key.split('.', 1)[0]}" / f"{key}.txt")
        content = f"state:{key}\n" + FILLING * (size // len(FILLING))
        return Call(key, "write", {"path": path, "content": content}, leaves=(path, content))

    def edit(self, key: str, written: Call) -> Call:
        """Applied twice it would leave two marks."""
        assert written.leaves is not None
        path, content = written.leaves
        old = content.split("\n", 1)[0]
        args: JsonObject = {"path": path, "old_string": old, "new_string": f"{old}+"}
        return Call(key, "edit", args, leaves=(path, content.replace(old, f"{old}+", 1)))

    def command(self, chance: Random, key: str) -> Call:
        mark = f"echo {key} >> {self.ledger}/{key.split('.', 1)[0]} || exit 99; "
        draw = chance.random()
        if draw < 0.5:
            return Call(key, "bash", {"command": f"{mark}true"}, exits=0)
        if draw < 0.62:
            return Call(key, "bash", {"command": f"{mark}sleep 0.{chance.randint(1, 9)}; exit 3"}, exits=3)
        if draw < 0.72:  # whose end nobody waits for
            child = chance.choice(("(sleep 1 &)", "setsid -f sleep 1", "nohup sh -c 'sleep 1 & sleep 0.2 &'"))
            return Call(key, "bash", {"command": f"{mark}{child} >/dev/null 2>&1"}, exits=0)
        if draw < 0.84:
            size = chance.choice((5_000, 100_000, 3_000_000))
            return Call(key, "bash", {"command": f"{mark}head -c {size} /dev/zero | tr '\\0' x"}, exits=0)
        if draw < 0.9:
            return Call(
                key, "bash", {"command": f"{mark}(trap '' TERM; sleep 60) & sleep 60", "timeout": 1}, exits=TIMED_OUT
            )
        script = f"{mark}for i in $(seq 20); do (true | cat) ; done; echo done\n"
        return Call(key, "bash", {"command": script + "# " + "x" * chance.choice((10, 120_000))}, exits=0)
