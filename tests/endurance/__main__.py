"""``python -m tests.endurance [--seed S] [--hours H | --seconds N | --chapters N]``: the long form, by hand."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from tests.endurance.pod import Place
from tests.endurance.run import EnduranceFailed, run
from tests.endurance.schedule import WEIGHTS, Size
from tests.sandbox.conftest import UID


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--seed", type=int, help="of a run to be played again; else any")
    parser.add_argument("--hours", type=float)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--chapters", type=int, default=5, help="when no time is given")
    parser.add_argument("--faults", type=int, default=Size.faults, help="of a chapter")
    parser.add_argument("--calm", type=int, default=Size.calm, help="so many times the usual distance between two")
    parser.add_argument("--kinds", nargs="+", default=(), choices=WEIGHTS, metavar="KIND", help="no other faults")
    parser.add_argument("--sessions", type=int, default=Size.sessions, help="that talk at once")
    parser.add_argument("--clients", type=int, default=Size.clients, help="that run commands at once")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    seconds = options.hours * 3600 if options.hours is not None else options.seconds
    size = Size(options.chapters, options.faults, options.calm, options.sessions, options.clients, tuple(options.kinds))
    print(f"seed {seed}", flush=True)
    try:
        report = asyncio.run(run(seed, size, place_of(seed), seconds=seconds, tell=True))
    except EnduranceFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    print("\n".join(report.lines()))
    return 0


def place_of(seed: int) -> Place:
    """The host is started as root with one seed and as an ordinary user with the next; its clocks are ahead in some, and some
    have a relay."""
    return Place.here(uid=0 if seed % 2 else UID, relay=seed % 5 < 2, shift=1_000_000 if seed % 3 == 0 else 0)


if __name__ == "__main__":
    sys.exit(main())
