"""A pod's life on the built image, under the manifest's own settings, behind the NetworkPolicy."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.image.conftest import Cluster
from tests.image.machine import until
from tests.image.network import API_SERVER, RUNTIME
from tests.image.pod import JoinSecret, Volume

GRACE = 10  # terminationGracePeriodSeconds
LONG = "$ touch begun; sleep 600"
SHORT_LEASES = ("--lease-seconds=6",)  # a run whose host is gone without a word is lost so soon
WITH_SETUP = """
name: assistant
setup:
  commands: [echo ran >> setup-ran]
"""


def opens(address: str, port: int) -> str:
    return f"timeout 3 bash -c '</dev/tcp/{address}/{port}'"


def test_nothing_joins_before_the_policy_is_in_force(cluster: Cluster) -> None:
    cluster.network.lift()
    runtime = cluster.runtime()
    pod = cluster.pod()
    pod.wait_for("gate.open")
    assert runtime.host == {"joined": False, "connected": False, "epoch": 0, "podUid": None}
    assert not (cluster.volume.path("harness") / "volume-id").exists()
    assert json.loads(pod.exec("pod-host", "status", "--json", check=False))["phase"] == "network gate"
    cluster.network.apply(cluster.policy)
    runtime.wait_for_host(pod)
    assert pod.state["RestartCount"] == 0


def test_a_pod_joins_behind_its_policy_and_takes_a_turn(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod()
    runtime.wait_for_host(pod)
    code, shown = runtime.say("Write a small program and test it.")
    assert code == 0, shown
    assert "completed" in shown
    session = runtime.session()
    # What the policy says, as a command sees it.
    assert runtime.bash(session, opens(*API_SERVER))["exitCode"] != 0
    for port in (4200, 4100, 4400):
        assert runtime.bash(session, opens(RUNTIME, port))["exitCode"] == 0
    # What the security context says.
    told = runtime.bash(session, "id; touch /x /opt/pod-host/x; cat /proc/self/status; cat /run/nylorun/join/token")
    assert "uid=1000(agent) gid=1000(agent)" in told["stdout"]
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in told["stdout"]
    assert told["stderr"].count("Read-only file system") == 2
    assert "token: Permission denied" in told["stderr"]
    # And nothing is written outside the mounts that a pod has.
    changed = [line.split()[1] for line in cluster.machine.podman("diff", pod.name).splitlines()]
    mounts = ("/workspace", "/harness", "/tmp", "/skills", "/run", "/etc", "/dev", "/proc", "/sys")
    assert [path for path in changed if not path.startswith(mounts)] == []


def test_status_answers_people_and_no_command(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod()
    runtime.wait_for_host(pod)
    session = runtime.session()
    runtime.north(f"sessions/{session}/messages", {"input": LONG})
    until((cluster.volume.path("workspace") / "begun").exists, "the turn's command")
    told = json.loads(pod.exec("pod-host", "status", "--json"))
    assert (told["podUid"], told["sandboxId"]) == (pod.uid, "pod-host-dev")
    assert (told["phase"], told["joined"]["epoch"], told["worker"]["alive"]) == ("connected", 1, True)
    assert len(told["runs"]) == 1
    assert "worker     alive" in pod.exec("pod-host", "status")
    answer = runtime.bash(runtime.session(), "pod-host status; cat /harness/status.cookie")
    assert answer["exitCode"] != 0
    assert answer["stdout"] == ""
    assert "/harness is not readable" in answer["stderr"]


def test_a_killed_host_is_started_again_and_its_turn_goes_on(cluster: Cluster) -> None:
    runtime = cluster.runtime(*SHORT_LEASES)
    pod = cluster.pod()
    runtime.wait_for_host(pod)
    with ThreadPoolExecutor() as pool:
        turn = pool.submit(runtime.say, "$ echo one >> told; sleep 3; echo two >> told", seconds=120)
        told = cluster.volume.path("workspace") / "told"
        until(told.exists, "the turn's command")
        pod.kill_host()
        runtime.wait_for_host(pod, epoch=2)
        code, shown = turn.result()
    assert code == 0, shown
    assert pod.state["RestartCount"] == 1
    assert told.read_text().splitlines()[0] == "one"
    assert len({event["volumeId"] for event in runtime.record("host.joined")}) == 1
    assert runtime.record("sandbox.relaunched") == []  # the same pod


def test_sigterm_gives_the_turn_back_within_the_grace(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod()
    runtime.wait_for_host(pod)
    session = runtime.session()
    runtime.north(f"sessions/{session}/messages", {"input": LONG})
    until((cluster.volume.path("workspace") / "begun").exists, "the turn's command")
    assert pod.stop(GRACE) == 0
    assert pod.events("shutdown.done")
    pod.delete()
    after = cluster.pod()
    runtime.wait_for_host(after)
    # The command's end was reported before the host left: the turn goes on behind it.
    until(lambda: runtime.record("turn.completed"), "the turn's end")


def test_a_suspended_sandbox_is_resumed_on_its_volume_by_another_pod(cluster: Cluster) -> None:
    runtime = cluster.runtime(agent=WITH_SETUP)
    first = cluster.pod()
    runtime.wait_for_host(first)
    session = runtime.session()
    assert runtime.say("$ echo kept > note", "--session", session)[0] == 0
    first.delete(GRACE)
    until(lambda: not runtime.host["connected"], "the pod's end")
    second = cluster.pod()
    assert second.uid != first.uid
    runtime.wait_for_host(second, epoch=2)
    code, shown = runtime.say("$ cat note setup-ran", "--session", session)
    assert code == 0, shown
    assert "kept" in shown
    assert (cluster.volume.path("workspace") / "setup-ran").read_text() == "ran\n"
    assert [event["podUid"] for event in runtime.record("sandbox.relaunched")] == [second.uid]


def test_a_pod_whose_node_dies_is_followed_by_another(cluster: Cluster) -> None:
    runtime = cluster.runtime(*SHORT_LEASES)
    first = cluster.pod()
    runtime.wait_for_host(first)
    session = runtime.session()
    runtime.north(f"sessions/{session}/messages", {"input": "$ touch begun; sleep 5"})
    until((cluster.volume.path("workspace") / "begun").exists, "the turn's command")
    first.delete(grace=0)
    second = cluster.pod()
    runtime.wait_for_host(second, epoch=2)
    until(lambda: runtime.record("turn.completed"), "the turn's end")
    assert runtime.record("sandbox.relaunched")


def test_a_reset_starts_on_a_new_volume_with_a_new_token(cluster: Cluster) -> None:
    before = cluster.runtime(agent=WITH_SETUP)
    old = cluster.pod()
    before.wait_for_host(old)
    before.delete()
    cluster.runtime_join.put("token-after-the-reset")
    after = cluster.runtime(agent=WITH_SETUP, state="after-the-reset")
    old.wait_for("join.refused")  # and its pod is on its way out: it keeps asking until then
    assert old.state["Running"]
    old.delete()
    volume, join = (
        Volume(cluster.directory / "new"),
        JoinSecret(cluster.directory / "new-join", "token-after-the-reset"),
    )
    new = cluster.pod(volume, join)
    after.wait_for_host(new)
    assert after.say("$ cat setup-ran")[0] == 0
    ids = [(one.path("harness") / "volume-id").read_text() for one in (cluster.volume, volume)]
    assert ids[0] != ids[1]
    assert (volume.path("workspace") / "setup-ran").read_text() == "ran\n"


def test_a_volume_that_was_replaced_is_refused_and_not_hidden(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    first = cluster.pod()
    runtime.wait_for_host(first)
    first.delete()
    second = cluster.pod(Volume(cluster.directory / "another"))
    second.wait_for("join.refused", count=2)
    assert second.state["Running"]
    assert second.state["RestartCount"] == 0
    assert runtime.record("sandbox.lost")


def test_a_rotated_join_secret_is_read_when_it_is_needed(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod()
    runtime.wait_for_host(pod)
    cluster.runtime_join.put("rotated")  # ours has expired
    assert runtime.say("$ true")[0] == 0  # what was joined stays so
    pod.kill_host()
    pod.wait_for("join.refused", count=2)
    cluster.join.put("rotated")
    runtime.wait_for_host(pod, epoch=2)
    assert pod.state["RestartCount"] == 1


def test_a_pod_that_waits_in_a_pool_joins_when_its_token_comes(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    empty = JoinSecret(cluster.directory / "no-token-yet")
    pod = cluster.pod(join=empty)
    pod.wait_for("join.unavailable")
    assert pod.events("gate.passed")
    empty.put("")  # a downward API volume without its annotation
    pod.wait_for("join.unavailable", count=len(pod.events("join.unavailable")) + 2)
    empty.put((cluster.runtime_join.directory / "token").read_text())
    runtime.wait_for_host(pod)
    assert pod.state["RestartCount"] == 0


def test_the_host_outlives_its_runtime(cluster: Cluster) -> None:
    before = cluster.runtime()
    pod = cluster.pod()
    before.wait_for_host(pod)
    session = before.session()
    before.delete(grace=0)
    after = cluster.runtime()
    after.wait_for_host(pod)
    assert after.say("$ true", "--session", session)[0] == 0
    assert pod.state["RestartCount"] == 0


def test_a_volume_belongs_to_the_group_and_that_is_enough(cluster: Cluster) -> None:
    """fsGroup gives a claim's files to the group 1000; the owner stays root."""
    runtime = cluster.runtime()
    runtime.wait_for_host(cluster.pod())
    written: Path = cluster.volume.path("workspace") / "written"
    assert runtime.say("$ echo x > written; git init -q here; git -C here status")[0] == 0
    assert (cluster.volume.path("workspace").stat().st_uid, written.stat().st_uid) == (0, 1000)
