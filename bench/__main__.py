"""All benches, one after the other: the table, ``results/*.json`` and the pictures.

``python -m bench [--short] [NAME …]``

``--short``: fewer rounds, for CI; nothing is written, and the exit code is 1 when a number is off by more than half.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench import exec, files, frames, herd, memory, output, peers, picture, search, shutdown, start, step
from bench.machine import Machine, idle_floor
from bench.rows import RESULTS, Result, table
from bench.running import Measure, run
from bench.series import Series

BENCHES: dict[str, Measure] = {
    "exec": exec.measure,
    "files": files.measure,
    "search": search.measure,
    "output": output.measure,
    "step": step.measure,
    "frames": frames.measure,
    "start": start.measure,
    "memory": memory.measure,
    "shutdown": shutdown.measure,
    "herd": herd.measure,
    "peers": peers.measure,
}
NOT_SHORT = ("peers",)  # needs the package registry


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures what a user would feel.")
    parser.add_argument("--short", action="store_true", help="fewer rounds; fail on what is off by more than half")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    names = asked.names or [name for name in BENCHES if not (asked.short and name in NOT_SHORT)]
    machine = Machine.this()
    before = idle_floor()
    results = []
    for name in names:
        began = time.monotonic()
        result = run(name, BENCHES[name], asked.short)
        if asked.short and result.far_off():
            result = run(name, BENCHES[name], asked.short)  # a bad moment of the machine's, perhaps
        results.append(result)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    after = idle_floor()
    told = f"{machine}\nfloor, idle: before {_told(before)}, after {_told(after)}\n\n"
    told += table([row for result in results for row in result.rows])
    print(f"\n{told}")
    if asked.short:
        return _verdict(results)
    for result in results:
        result.write(machine, before)
    if not asked.names:
        (RESULTS / "table.txt").write_text(f"{told}\n")
    picture.draw()
    return 0


def _told(floor: Series) -> str:
    return f"p50 {floor.median:.2f} ms, p99 {floor.p99:.2f} ms"


def _verdict(results: list[Result]) -> int:
    far_off = [line for result in results for line in result.far_off()]
    for line in far_off:
        print(f"\noff by more than half: {line}", file=sys.stderr)
    return 1 if far_off else 0


if __name__ == "__main__":
    sys.exit(main())
