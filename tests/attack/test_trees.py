"""Timeout, abort, a lost connection, shutdown, the death of worker or zygote: nothing of a command is left, and nobody else's
server is hit.

What is left is counted from outside the PID namespace, by no mark of ours.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.attack.rig import NAMESPACE, PYTHONPATH, SECONDS, Rig, as_each, attacked, is_zygote, why_not
from tests.attack.trees import TREES
from tests.sandbox.conftest import alive, eventually, processes_of

SERVER = """
mkdir -p served; cd served; echo served > index.html
python3 -u -m http.server 0 --bind 127.0.0.1 > ../log 2>&1 &
until grep -q 'port [0-9]' ../log; do sleep 0.02; done
grep -oE 'port [0-9]+' ../log
"""


class Bystander:
    """A server of another session, in the same sandbox."""

    def __init__(self, rig: Rig, port: int, pids: frozenset[int]) -> None:
        self._port = port
        self._rig = rig
        self.pids = pids

    @classmethod
    async def start(cls, rig: Rig) -> Bystander:
        output = await rig.bash(SERVER, "bystander")
        await eventually(lambda: len(rig.others()) == 1)
        assert output["background"][0]["ports"] == [int(output["stdout"].split()[1])]
        return cls(rig, int(output["stdout"].split()[1]), frozenset(rig.others()))

    async def serves(self) -> bool:
        return await asyncio.to_thread(self._ask) == b"served\n"

    def _ask(self) -> bytes:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._port}/index.html", timeout=SECONDS) as answer:
            content: bytes = answer.read()
            return content


async def running(rig: Rig, command: str) -> tuple[int, asyncio.Future[dict[str, object]]]:
    """A command that has begun for sure: its tree is there for a moment at least."""
    number, answer = await rig.begin(f"touch begun; {command}")
    await eventually((rig.base / "workspace" / "begun").exists)
    (rig.base / "workspace" / "begun").unlink()
    await rig.bash("sleep 0.3", "other")  # for the tree to grow; in the sandbox, where time is as scarce as for it
    return number, answer


@as_each
async def test_a_timeout_leaves_nothing_and_hits_nobody_else(uid: int) -> None:
    async with attacked(uid) as rig:
        bystander = await Bystander.start(rig)
        for name, tree in TREES.items():
            _, ends = await rig.begin("sleep 1.3; echo whole", "beside")
            output = await rig.bash(tree, timeout=1)
            if name != "bomb" or output.get("timedOut"):
                assert (output["exitCode"], output.get("timedOut")) == (124, True), (name, output)
            else:  # where it grows fast enough, it has more processes than it may before its time is over
                assert "processes and threads" in output["stderr"]
            assert (await ends)["r"]["output"]["stdout"] == "whole\n", name
            await rig.nothing_left(bystander.pids)
            assert await bystander.serves(), name


@as_each
async def test_an_abort_leaves_nothing_and_hits_nobody_else(uid: int) -> None:
    async with attacked(uid) as rig:
        bystander = await Bystander.start(rig)
        for name, tree in TREES.items():
            number, answer = await running(rig, tree)
            await rig.connection.send({"t": "abort", "id": number})
            await answer
            await rig.nothing_left(bystander.pids)
            assert await bystander.serves(), name


@as_each
async def test_a_lost_connection_leaves_nothing_and_hits_nobody_else(uid: int) -> None:
    """All the trees at once, each a session's."""
    async with attacked(uid) as rig:
        bystander = await Bystander.start(rig)
        for number, tree in enumerate(TREES.values()):
            await rig.begin(tree, f"attacker{number}")
        await rig.bash("sleep 0.5", "other")  # for the trees to grow
        await rig.connection.close("core is stopping")
        await rig.nothing_left(bystander.pids)
        assert await bystander.serves()
        await rig.connect(2)
        assert (await rig.bash("echo on"))["stdout"] == "on\n"


@as_each
async def test_a_shutdown_leaves_nothing_at_all(uid: int) -> None:
    async with attacked(uid) as rig:
        await Bystander.start(rig)
        for number, tree in enumerate(TREES.values()):
            await rig.begin(tree, f"attacker{number}")
        await rig.bash("sleep 0.5", "other")  # for the trees to grow
        init, host = rig.init_pid, rig.host_pid
        ending = asyncio.create_task(rig.process.event("ended"))
        os.kill(init, signal.SIGSTOP)  # so that the namespace outlives the host, for what is left to be seen
        os.kill(host, signal.SIGTERM)
        await eventually(lambda: not alive(host), SECONDS)
        left = [pid for pid in processes_of(init) if pid != host and alive(pid)]
        assert left == []
        os.kill(init, signal.SIGCONT)
        assert (await ending)["status"] == 0
        assert "shutdown.forced" not in rig.process.log


@as_each
async def test_a_killed_worker_leaves_nothing_of_any_command(uid: int) -> None:
    async with attacked(uid) as rig:
        await Bystander.start(rig)
        answers = [await rig.begin(tree, f"attacker{number}") for number, tree in enumerate(TREES.values())]
        await rig.bash("sleep 0.5", "other")  # for the trees to grow
        before = rig.worker_pid
        os.kill(before, signal.SIGKILL)
        lost = [not (await answer)["ok"] for _, answer in answers]
        assert sum(lost) > len(TREES) / 2  # the bomb, and whom it left no processes, may have ended before
        assert (await rig.bash("echo again"))["stdout"] == "again\n"
        assert rig.worker_pid != before
        await rig.nothing_left()


@as_each
async def test_a_killed_zygote_costs_no_command_and_its_trees_end_all_the_same(uid: int) -> None:
    async with attacked(uid) as rig:
        bystander = await Bystander.start(rig)
        answers = [await rig.begin(tree, f"attacker{number}") for number, tree in enumerate(TREES.values())]
        await rig.bash("sleep 0.5", "other")  # for the trees to grow
        worker = rig.worker_pid
        for pid in zygotes(rig):
            os.kill(pid, signal.SIGKILL)
        assert (await rig.bash("echo on", "other"))["stdout"] == "on\n"
        for number, answer in answers:
            await rig.connection.send({"t": "abort", "id": number})
            await answer
        await rig.nothing_left(bystander.pids)
        assert await bystander.serves()
        assert rig.worker_pid == worker


def zygotes(rig: Rig) -> list[int]:
    return [pid for pid in processes_of(rig.worker_pid) if is_zygote(pid, rig.worker_pid)]


REUSE = """
import os, resource, signal, subprocess, sys, time
from pod_host.sandbox.tags import RLIMIT_LOCKS, TagSpace, Tagged, is_zombie, send
space = TagSpace.within_own_limits()

def start(number, pid):
    def mark():
        rss, locks = space.limits(number)
        resource.setrlimit(resource.RLIMIT_RSS, (rss, rss))
        resource.setrlimit(RLIMIT_LOCKS, (locks, locks))
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    return subprocess.Popen(["sleep", "99"], preexec_fn=mark)

first = start(1, 500)
assert first.pid == 500, first.pid
found = Tagged(500, 1, space.limits(1))
first.kill()
first.wait()
second = start(2, 500)
assert second.pid == 500, second.pid
send(space, found, signal.SIGKILL)
time.sleep(0.2)  # a signal would have arrived
print("other lives" if not is_zombie(500) else "other was hit")
send(space, Tagged(500, 2, space.limits(2)), signal.SIGKILL)
second.wait()
print("own was hit")
"""


@pytest.mark.skipif(why_not(0) is not None, reason=str(why_not(0)))
def test_a_signal_for_a_process_that_has_gone_does_not_reach_the_one_with_its_number() -> None:
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", REUSE], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("other lives\nown was hit\n", "")
