"""Which faults come, and when: from the seed alone.

Time is counted in acknowledgements, not in seconds: a fault comes after so many outcomes and answers since the one before,
so that a slow machine meets it in the same place as a fast one.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from pod_host.contract.base import Json


@dataclass(frozen=True)
class Fault:
    """``after``: so many acknowledgements after the fault before."""

    after: int
    kind: str
    args: tuple[Json, ...] = ()

    def __str__(self) -> str:
        return f"+{self.after} {self.kind}{self.args or ''}"


@dataclass(frozen=True)
class Size:
    """``faults``: of a chapter; those of ``kinds``, when some are named. ``calm``: so many times the usual distance between
    two. ``sessions`` talk, ``clients`` call the sandbox directly."""

    chapters: int
    faults: int = 10
    calm: int = 1
    sessions: int = 6
    clients: int = 4
    kinds: tuple[str, ...] = ()


WEIGHTS: Final = {
    "core.killed": 5,  # and started again after a while
    "core.stopped": 2,  # as it should be, and started again
    "core.frozen": 2,
    "core.keys": 1,  # killed, and started with other keys: every token is refused
    "core.clock": 2,  # its wall clock jumps: tokens and leases end at once, or late
    "wire.cut": 6,
    "wire.stalled": 2,
    "wire.unplugged": 2,
    "gate.late": 3,
    "gate.twice": 3,
    "gate.never": 2,
    "gate.swallowed": 2,
    "gate.reset": 3,
    "gate.busy": 2,
    "host.killed": 2,
    "host.stopped": 2,
    "host.frozen": 2,
    "host.clock": 3,
    "worker.killed": 4,
    "worker.frozen": 1,
    "zygote.killed": 4,
    "relay.killed": 2,
    "disk.full": 2,
    "turn.cancelled": 4,
}
HOURS: Final = 7200.0


def chapter(seed: int, number: int, size: Size) -> list[Fault]:
    """The faults of one chapter, in their order."""
    chance = Random(f"{seed} faults {number}")
    weights = {kind: weight for kind, weight in WEIGHTS.items() if not size.kinds or kind in size.kinds}
    kinds = chance.choices(list(weights), list(weights.values()), k=size.faults)
    return [Fault(chance.randint(3, 45) * size.calm, kind, _arguments(kind, chance)) for kind in kinds]


def _arguments(kind: str, chance: Random) -> tuple[Json, ...]:
    seconds = round(chance.uniform(0.2, 3.0), 2)
    match kind:
        case "core.killed" | "core.stopped" | "core.keys" | "core.frozen" | "host.frozen" | "worker.frozen":
            return (seconds,)
        case "host.killed" | "host.stopped":
            return (round(seconds / 3, 2),)
        case "core.clock":
            return (chance.choice((-HOURS, -30.0, 30.0, HOURS)),)
        case "host.clock":
            return (chance.choice((-HOURS, -1.0, 1.0, HOURS)), chance.choice((0.0, 0.0, 10.0, 600.0)))
        case "wire.cut":
            return (chance.choice(("to core", "to host")), chance.randint(1, 8))
        case "wire.stalled" | "wire.unplugged":  # shorter and longer than a peer's silence may be
            return (chance.choice((0.5, 2.0, 4.0, 10.0)),)
        case "gate.late" | "gate.twice" | "gate.reset" | "gate.busy":
            return (chance.randint(1, 6), seconds)
        case "gate.never" | "gate.swallowed":
            return (chance.randint(1, 2), 0.0)
        case "disk.full":
            return (seconds,)
        case "turn.cancelled":
            return (chance.randrange(100),)
        case _:
            return ()
