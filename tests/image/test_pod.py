"""A pod's life on the built image, under the manifest's own settings, behind the NetworkPolicy."""

from __future__ import annotations

from tests.image.conftest import Cluster


def test_a_pod_joins_behind_its_policy_and_takes_a_turn(cluster: Cluster) -> None:
    runtime = cluster.runtime()
    pod = cluster.pod()
    runtime.wait_for_host(pod)
    code, shown = runtime.say("Write a small program and test it.")
    assert code == 0, shown
    assert "completed" in shown
