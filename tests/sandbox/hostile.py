"""Run by test_hostile.py as the init of a PID namespace: hostile trees against one sandbox, with bystanders beside them.

Arguments: the directory, the uid that commands become, the rounds. Prints a JSON object: by the tree's name, what was
wrong (an empty list: nothing).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pod_host.errors import WorkerLost
from pod_host.sandbox import Completed, Pending, Sandbox, SandboxConfig, command_environment
from pod_host.sandbox.requests import Command
from pod_host.sandbox.tags import parent_of

_HOPPER = "import os, sys\nwhile 1:\n    if os.fork(): os._exit(0)\n    {each}"
TREES = {
    "daemon": "env -i setsid -f sh -c 'sleep 999 & sleep 999'; sleep 99",
    "hopper": f"python3 -c '{_HOPPER.format(each='pass')}' & sleep 99",
    "hopper with setsid": f"python3 -c '{_HOPPER.format(each='os.setsid()')}' & sleep 99",
    "two hoppers": f"for i in 1 2; do python3 -c '{_HOPPER.format(each='os.setsid()')}' & done; sleep 99",
    "bomb": "f() { f | f & }; trap '' TERM; f; sleep 99",
    "stopped": "(sleep 99 & kill -STOP $!; setsid -f sh -c 'kill -STOP $$') ; sleep 99",
    "own subreaper": (
        "python3 -c 'import ctypes, os, time\nctypes.CDLL(None).prctl(36, 1)\n"
        "for _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        os.fork()\n        time.sleep(99)\n"
        "time.sleep(99)' & sleep 99"
    ),
    "respawner": "trap '' TERM; while :; do (trap '' TERM; setsid sleep 99) & wait $!; done",
    "broken tags": f"(ulimit -m 1; ulimit -x 1; python3 -c '{_HOPPER.format(each='os.setsid()')}') & sleep 99",
    "pid namespace": "unshare -rpf sh -c 'trap \"\" TERM; sleep 99 & sleep 99'; sleep 99",
}
_MOST_PROCESSES = 400


async def main() -> None:
    directory, uid, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NPROC, (_MOST_PROCESSES, _MOST_PROCESSES))
    sandbox = Sandbox(
        SandboxConfig(directory / "w", directory / "home", directory / "skills", directory / "spool", uid=uid)
    )
    await sandbox.start()
    environment = command_environment(
        base={}, home=directory / "home", session={}, proxy=None, trust_bundle=None, traceparent=None
    )

    def start(session: str, command: str, seconds: float = 60.0) -> Pending:
        return sandbox.submit(Command(session, command, str(directory / "w"), environment, seconds))

    wrong: dict[str, list[str]] = {}
    server = await start("bystander", "setsid sleep 5000 >/dev/null 2>&1 & echo $!").outcome()
    assert isinstance(server, Completed)
    for name, tree in list(TREES.items()) * rounds:
        faults = wrong.setdefault(name, [])
        beside = start("beside", "(sleep 1 &); sleep 0.1; echo done")
        outcome = await start("hostile", tree, 0.4).outcome()
        exits = (124, 137) if name == "bomb" else (124,)  # it may have too many processes before its time is over
        if not isinstance(outcome, Completed) or outcome.output["exitCode"] not in exits:
            faults.append(f"ended as {outcome}")
        bystander = await beside.outcome()
        if not isinstance(bystander, Completed) or bystander.output["stdout"] != "done\n":
            faults.append(f"a bystander ended as {bystander}")
        living = [(process.session, process.command) for process in (await sandbox.report()).processes]
        faults.extend(f"left: {command}" for session, command in living if session not in ("bystander", "beside"))
        if ("bystander", "sleep 5000") not in living:
            faults.append("the server of a bystander is gone")
    wrong["worker"] = [] if (await sandbox.report()).alive else ["the worker died"]
    wrong["killed worker"] = await _worker_killed(sandbox, start)
    await sandbox.stop()
    wrong["after stop"] = list(_others().values())
    print(json.dumps(wrong))


async def _worker_killed(sandbox: Sandbox, start: Callable[[str, str], Pending]) -> list[str]:
    """The host ends what a killed worker leaves, hoppers too, before it starts another."""
    calls = [start(name, TREES[name]) for name in ("hopper", "two hoppers", "broken tags", "respawner", "daemon")]
    await start("other", "sleep 0.5").outcome()
    os.kill((await sandbox.report()).pid, signal.SIGKILL)
    for call in calls:
        try:
            await call.outcome()
        except WorkerLost:
            continue
        return ["a call was answered by a dead worker"]
    await start("other", "true").outcome()
    report = await sandbox.report()
    ours = {os.getpid(), report.pid, report.zygote}
    return [
        text
        for pid, text in _others().items()
        if pid not in ours and parent_of(pid) != report.zygote  # a shell that waits for a script
    ]


def _others() -> dict[int, str]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]
    return {pid: Path(f"/proc/{pid}/status").read_text()[:200] for pid in pids}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    asyncio.run(main())
