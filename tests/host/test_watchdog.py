"""The watchdog, on real processes: a loop that is stuck, one that is only slow, a process that was stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PRELUDE = """
import asyncio, os, sys, time
from pod_host.host.watchdog import Departure, Watchdog
async def main():
    watchdog = Watchdog(seconds=0.5, tick=0.05)
    watchdog.start(asyncio.get_running_loop())
    print("watched", flush=True)
"""


def start(body: str) -> subprocess.Popen[str]:
    program = PRELUDE + "".join(f"    {line}\n" for line in body.splitlines()) + "asyncio.run(main())\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "watched\n"
    return process


def test_a_stuck_loop_ends_the_process_with_70_and_all_stacks() -> None:
    process = start("def stuck_here():\n    while True: time.sleep(1)\nstuck_here()")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 70
    assert "watchdog.stuck" in errors
    assert "stuck_here" in errors


def test_a_loop_that_is_busy_and_turns_is_not_stuck() -> None:
    process = start("for _ in range(15):\n    time.sleep(0.1)\n    await asyncio.sleep(0)")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_process_that_was_stopped_is_not_stuck() -> None:
    process = start("await asyncio.sleep(1)")
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5)  # three times the patience
    os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_shutdown_that_hangs_is_over_in_time_all_the_same() -> None:
    process = start("watchdog.stop()\nDeparture().leave_after(0.2, 0)\nwhile True: time.sleep(1)")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "shutdown.forced" in errors
