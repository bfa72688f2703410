"""Everything that a command may try on host and worker, tried once per host and Landlock ABI; the tests look at it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pod_host import limits
from pod_host.sandbox import kernel
from tests.attack.rig import HERE, Rig, attacked
from tests.sandbox.conftest import alive

NEWEST = kernel.landlock_abi()


@dataclass(frozen=True)
class Seen:
    """``met``: by attempt ("host kill", "worker priority 17"), the errno. ``before``, ``after``: what is set on host and
    worker, as read from outside. ``lives``: whether both do, and are the same."""

    met: dict[str, int]
    before: dict[str, str]
    after: dict[str, str]
    lives: bool


@cache
def battery(uid: int, abi: int, seccomp: bool = True) -> Seen:
    return asyncio.run(_battery(uid, abi, seccomp))


async def _battery(uid: int, abi: int, seccomp: bool) -> Seen:
    async with attacked(uid, abi=abi, seccomp=seccomp, POD_HOST_EGRESS="relay") as rig:
        await rig.write("tests/sandbox/attacks.py", (HERE.parent / "sandbox" / "attacks.py").read_text())
        await rig.write("reach.py", (HERE / "reach.py").read_text())
        for number in range(3):  # whatever threads a life brings are there by now
            await rig.write(f"f{number}", "x" * 100_000)
            await rig.bash("true", f"s{number}")
        before = settings_of(rig)
        host, worker, relay = rig.host_pid, rig.worker_pid, rig.relay_pid
        output = await rig.bash("PYTHONPATH=. python3 reach.py")
        assert output["stdout"].startswith("{"), output
        assert (await rig.bash("echo still here"))["stdout"] == "still here\n"
        assert len([name for name in before if name.startswith("host thread")]) > limits.HOST_THREADS
        lives = alive(host) and alive(worker) and (rig.worker_pid, rig.relay_pid) == (worker, relay)
        met = {
            f"{target} {attempt}": code
            for target, kinds in json.loads(output["stdout"]).items()
            for tried in kinds.values()
            for attempt, code in tried.items()
        }
        return Seen(met, before, settings_of(rig), lives)


def settings_of(rig: Rig) -> dict[str, str]:
    """Limits of the processes; nice, processors, policy and I/O priority of each of their threads."""
    found = {}
    for name, pid in (("host", rig.host_pid), ("worker", rig.worker_pid), ("relay", rig.relay_pid)):
        found[f"{name} limits"] = Path(f"/proc/{pid}/limits").read_text()
        found[f"{name} oom"] = Path(f"/proc/{pid}/oom_score_adj").read_text()
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            ioprio = subprocess.run(["ionice", "-p", str(thread)], capture_output=True, text=True, check=False).stdout
            found[f"{name} thread {thread}"] = (
                f"nice {os.getpriority(os.PRIO_PROCESS, thread)}, on {sorted(os.sched_getaffinity(thread))}, "
                f"policy {os.sched_getscheduler(thread)}, i/o {ioprio.strip()}"
            )
    return found
