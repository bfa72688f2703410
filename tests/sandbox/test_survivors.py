"""What a command leaves running: named with the ports it listens on, counted where there is too much of it, reaped."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys

from pod_host import limits
from pod_host.sandbox import Completed, ToolCall
from pod_host.sandbox.worker.machinery import children_of_this_thread
from pod_host.sandbox.worker.ports import listening_ports
from tests.sandbox.conftest import Box, eventually, processes_of

LISTENS = (
    "python3 -uc 'import socket, time\n"
    'four = socket.create_server(("127.0.0.1", 0)); six = socket.create_server(("::1", 0), family=socket.AF_INET6)\n'
    "print(four.getsockname()[1], six.getsockname()[1]); time.sleep(600)' > ports 2>&1 & "
    "until grep -q '[0-9]' ports || ! kill -0 $!; do sleep 0.02; done; cat ports"
)


async def test_ports_that_a_survivor_listens_on_are_named_in_the_result_and_in_the_report(box: Box) -> None:
    output = await box.bash(LISTENS)
    (survivor,) = output["background"]
    assert survivor["ports"] == sorted(map(int, output["stdout"].split()))
    (process,) = (await box.sandbox.report()).processes
    assert (process.pid, process.session, list(process.ports)) == (survivor["pid"], "one", survivor["ports"])


async def test_only_so_many_survivors_are_named_and_the_others_are_counted(box: Box) -> None:
    more = 7
    output = await box.bash(f"for i in $(seq {limits.PROCESSES_NAMED + more}); do sleep 600 >/dev/null 2>&1 & done")
    assert len(output["background"]) == limits.PROCESSES_NAMED
    assert output["backgroundOmitted"] == more
    report = await box.sandbox.report()
    assert (len(report.processes), report.more) == (limits.PROCESSES_NAMED, more)


async def test_a_command_that_never_had_a_shell_names_nobodys_processes(box: Box) -> None:
    """Aborted while its shell was being started; strays of another one live."""
    await box.bash("(ulimit -m 1; ulimit -x 1; setsid -f sleep 600 >/dev/null 2>&1)")
    for number in range(30):
        environment = {**box.environment, "NUMBER": str(number)}  # for which no shell waits
        call = box.sandbox.submit(ToolCall("other", "bash", {"command": "true"}, environment))
        call.abort()
        outcome = await call.outcome()
        assert isinstance(outcome, Completed)
        assert "background" not in outcome.output


async def test_zombies_of_what_lived_on_are_reaped(box: Box) -> None:
    worker = (await box.sandbox.report()).pid
    await box.bash("for i in 1 2 3; do setsid -f sleep 0.1; done; (sleep 0.2 & exec sleep 0.1) &")
    await eventually(lambda: len(processes_of(worker)) == 1)  # the zygote


def test_ports_are_whose_they_are() -> None:
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_connection(ours.getsockname()):
            ports = listening_ports([os.getpid(), process.pid, 2**22 + 1])
            assert ports[process.pid] == (port,)
            assert ours.getsockname()[1] in ports[os.getpid()]
        process.kill()


def test_children_are_all_seen_when_their_pids_fill_more_than_a_page() -> None:
    many = resource.getpagesize() // len("100 ") + 1
    ends, held = os.pipe()
    pids = {os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, ends, 0)]) for _ in range(many)}
    try:
        found = children_of_this_thread()
        assert found is not None
        assert pids <= found
    finally:
        os.close(held)
        os.close(ends)
        for pid in pids:
            os.waitpid(pid, 0)
