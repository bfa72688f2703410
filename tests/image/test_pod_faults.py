"""What goes wrong around a pod: no policy, a full disk, no memory, a clock that jumps; and an image that extends ours."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.conftest import Cluster
from tests.image.machine import REPOSITORY, Machine, until
from tests.image.network import API_SERVER
from tests.image.pod import Pod, RuntimeContainer, Volume

EXTENDED = "localhost/pod-host-test-extended:dev"
LOW_MEMORY = "256Mi"
EAT = "bytearray(10**9)"
GATE_SECONDS = 120  # how long a host waits for a policy
HOST_PROCESS, WORKER = "pod_host run", "worker.main"


@pytest.fixture
def small(cluster: Cluster) -> Iterator[Volume]:
    """A volume of a few MB."""
    directory = cluster.directory / "small"
    directory.mkdir()
    cluster.machine.run("mount", "-t", "tmpfs", "-o", "size=8m,mode=0755", "pod-host-test", str(directory))
    yield Volume(directory)
    cluster.close()
    cluster.machine.run("umount", str(directory))


@pytest.fixture(scope="module")
def extended(images: Machine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The README's own lines, with a library that changes what programs see as the time."""
    context = tmp_path_factory.mktemp("extended")
    shown = re.search(r"```dockerfile\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert shown
    lines = shown[1].replace("nodejs npm", "libfaketime")
    assert (len(lines.splitlines()), lines.count("libfaketime")) == (4, 1)
    (context / "Dockerfile").write_text(lines)
    images.build(context, EXTENDED)
    return EXTENDED


def score(runtime: RuntimeContainer, session: str) -> str:
    return str(runtime.bash(session, "cat /proc/self/oom_score_adj")["stdout"]).strip()


def test_an_extended_image_takes_a_sandbox_over(cluster: Cluster, extended: str) -> None:
    """As an upgrade does: the next pod of the sandbox has another image."""
    runtime = cluster.runtime()
    before = cluster.pod()
    runtime.wait_for_host(before)
    session = runtime.session()
    assert runtime.say("$ echo kept > note", "--session", session)[0] == 0
    before.delete()
    after = cluster.pod(image=extended)
    runtime.wait_for_host(after, epoch=2)
    code, shown = runtime.say("$ cat note; id -u; dpkg -l libfaketime | tail -n 1", "--session", session)
    assert code == 0, shown
    assert "ii  libfaketime" in shown
    assert "kept\n" in shown
    assert "1000\n" in shown


def test_a_clock_that_jumps_costs_neither_connection_nor_credentials(cluster: Cluster, extended: str) -> None:
    runtime = cluster.runtime()
    clock = cluster.volume.path("harness") / "clock"  # read by the host alone: commands may not look there
    clock.write_text("+0")
    (library,) = _faketime(cluster.machine)
    pod = cluster.pod(
        image=extended,
        LD_PRELOAD=library,
        FAKETIME_TIMESTAMP_FILE="/harness/clock",
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        POD_HOST_RENEW_SECONDS="1",
        POD_HOST_LOG_LEVEL="debug",
    )
    runtime.wait_for_host(pod)
    first = str(pod.events("join.done")[0]["at"])[:10]
    for jump in ("+3d", "-3d", "+0"):
        clock.write_text(jump)
        pod.wait_for("renew.done", count=len(pod.events("renew.done")) + 2)
        assert runtime.say("$ true")[0] == 0
    assert [event for event in pod.events("renew.done") if str(event["at"])[:10] not in (first,)]  # it did jump
    assert runtime.host["epoch"] == 1
    assert pod.events("renew.refused") == pod.events("channel.closed") == []


def test_a_full_disk_fails_commands_and_no_host(cluster: Cluster, small: Volume) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod(small)
    runtime.wait_for_host(pod)
    session = runtime.session()
    told = runtime.bash(session, "echo before > kept; head -c 20M /dev/zero > big")
    assert told["exitCode"] != 0
    assert "No space left on device" in told["stderr"]
    code, shown = runtime.say('use the tool write with {"path": "kept", "content": "%s"}' % ("x" * 4096))
    assert code == 0, shown
    assert "No space left" in shown
    assert (small.path("workspace") / "kept").read_text() == "before\n"  # whole, as it was
    pod.kill_host()  # and what it keeps there is enough to come back
    runtime.wait_for_host(pod, epoch=2)
    assert runtime.bash(session, "rm big; echo after > kept")["exitCode"] == 0
    assert runtime.say("$ cat kept")[0] == 0


def test_a_volume_that_is_full_from_the_start_is_waited_for(cluster: Cluster, small: Volume) -> None:
    runtime = cluster.runtime()
    ballast = small.path("workspace") / "ballast"
    assert cluster.machine.outcome("dd", "if=/dev/zero", f"of={ballast}", "bs=4k")[0] != 0
    pod = cluster.pod(small)
    until(lambda: "No space left" in pod.log(), "a word about the disk")
    ballast.unlink()
    runtime.wait_for_host(pod)


def test_a_command_that_eats_the_memory_dies_alone(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod(memory=LOW_MEMORY)
    runtime.wait_for_host(pod)
    session = runtime.session()
    before = pod.pids(HOST_PROCESS) + pod.pids(WORKER)[:1]
    told = runtime.bash(session, f"python3 -c '{EAT}'; echo $?")
    assert told["stdout"].strip() == "137"
    assert pod.pids(HOST_PROCESS) + pod.pids(WORKER)[:1] == before
    assert int(score(runtime, session)) > 0  # the kernel was told whom to take first
    assert pod.state["RestartCount"] == 0


def test_a_worker_that_the_kernel_kills_is_replaced(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod(memory=LOW_MEMORY)
    runtime.wait_for_host(pod)
    session = runtime.session()
    worker = pod.pids(WORKER)[0]
    _take_first(worker)
    pod.exec("python3", "-c", EAT, check=False)
    until(lambda: worker not in pod.pids(WORKER), "the worker's end")
    assert runtime.bash(session, "echo alive")["stdout"] == "alive\n"
    assert pod.state["RestartCount"] == 0
    assert runtime.host["epoch"] == 1


def test_a_host_that_the_kernel_kills_is_started_again(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod(memory=LOW_MEMORY)
    runtime.wait_for_host(pod)
    session = runtime.session()
    assert runtime.bash(session, "echo kept > note")["exitCode"] == 0
    (host,) = pod.pids(HOST_PROCESS)
    _take_first(host)
    pod.exec("python3", "-c", EAT, check=False)
    runtime.wait_for_host(pod, epoch=2)
    assert pod.state["RestartCount"] == 1
    assert runtime.bash(session, "cat note")["stdout"] == "kept\n"


def test_a_network_that_is_never_closed_ends_the_host_with_75(never_closed: Pod) -> None:
    pod = never_closed
    until(lambda: not pod.state["Running"], "its end", seconds=GATE_SECONDS + 60)
    assert pod.state["ExitCode"] == 75
    (fault,) = pod.events("gate.failed")
    assert f"{API_SERVER[0]}:{API_SERVER[1]} still answered" in fault["reason"]
    assert pod.events("join.done") == []


def _take_first(pid: int) -> None:
    """Of the pod's processes, the kernel will kill this one when memory is out."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def _faketime(machine: Machine) -> list[str]:
    """The library's path in the extended image."""
    found = machine.podman("run", "--rm", "--entrypoint", "/bin/sh", EXTENDED, "-c", "dpkg -L libfaketime")
    return [line for line in found.splitlines() if os.path.basename(line) == "libfaketime.so.1"]
