"""What the host does to itself, and which paths its sandbox is kept out of."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from pod_host.host.hardening import sandbox_config, sandbox_paths, starter_homes, temporary_directory
from pod_host.settings import Settings
from tests.host.conftest import StartHost, pod_environment
from tests.host.core import Core

POD = Path("/pod")


def settings(**variables: str) -> Settings:
    return Settings.read(pod_environment(POD, "http://127.0.0.1:1", **variables))


def test_the_join_token_and_the_hosts_files_are_denied_but_for_home_and_bundle() -> None:
    paths = sandbox_paths(settings(), ())
    assert paths.denied == (POD / "join", POD / "harness")
    assert paths.allowed == (POD / "harness" / "home",)
    assert paths.readable == (POD / "harness" / "trust",)


def test_a_join_token_beside_what_commands_need_is_denied_as_a_file() -> None:
    beside = settings(NYLORUN_SANDBOX_JOIN_FILE="/pod/token")
    assert sandbox_paths(beside, ()).denied == (POD / "token", POD / "harness")
    assert sandbox_paths(settings(NYLORUN_SANDBOX_JOIN_FILE="/token"), ()).denied[0] == Path("/token")
    assert sandbox_paths(settings(NYLORUN_SANDBOX_JOIN_FILE="/tmp/token"), ()).denied[0] == Path("/tmp/token")


def test_on_a_laptop_the_starters_home_is_denied_too_but_not_the_workspace_in_it() -> None:
    paths = sandbox_paths(settings(POD_HOST_WORKSPACE_DIR="/home/ada/work"), [Path("/home/ada")])
    assert Path("/home/ada") in paths.denied
    assert Path("/home/ada/work") in paths.allowed
    assert POD / "harness" / "home" in paths.allowed


def test_a_home_that_is_none_or_the_commands_own_is_not_denied() -> None:
    for home in (Path("/"), Path("/nonexistent"), POD / "harness" / "home"):
        assert home not in sandbox_paths(settings(), [home]).denied


def test_the_starters_home_is_what_home_says_and_what_the_user_database_says() -> None:
    listed = pwd.getpwuid(os.geteuid()).pw_dir
    assert starter_homes(settings(HOME="/somewhere/else")) == (Path("/somewhere/else"), Path(listed))
    assert starter_homes(settings(HOME=listed)) == (Path(listed),)
    assert starter_homes(settings(HOME="not/absolute")) == (Path(listed),)


def test_commands_make_their_temporary_files_at_home_where_what_is_hidden_closes_tmp() -> None:
    assert temporary_directory(sandbox_config(settings())) is None
    below = settings(POD_HOST_HARNESS_DIR="/tmp/somewhere/harness")
    assert temporary_directory(sandbox_config(below)) == Path("/tmp/somewhere/harness/home")
    skills = settings(POD_HOST_SKILLS_DIR="/tmp/skills")
    assert temporary_directory(sandbox_config(skills)) == POD / "harness" / "home"


def test_in_a_cluster_what_lies_in_a_home_is_the_images_and_stays_open() -> None:
    outside, inside = settings(), settings(KUBERNETES_SERVICE_HOST="10.96.0.1")
    assert set(sandbox_config(inside).denied) == {POD / "join", POD / "harness"}
    assert sandbox_config(inside).spool == Path("/tmp/pod-host")
    assert sandbox_config(outside).spool != sandbox_config(inside).spool


async def test_the_host_cannot_be_looked_into_and_gains_no_privileges(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    host = await start_host()
    connection = await core.connected()
    pid = host.process.pid
    status = dict(line.split(":\t", 1) for line in proc(pid, "status").splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    script = f"""
        for i in $(seq 20); do kill -9 {pid} && echo killed; done 2>/dev/null
        cat /proc/{pid}/environ /proc/{pid}/maps && echo looked
        ls /proc/{pid}/fd && echo listed
        dd if=/proc/{pid}/mem count=1 && echo read
        cat {pod}/join/token {pod}/harness/volume-id {pod}/harness/setup.json && echo opened
        mv {pod}/join {pod}/moved && echo moved
        true
    """
    call = {"session": {"ownerId": "s"}, "tool": "bash", "input": {"command": script}}
    answer = await connection.ask("workspace.exec", call)
    assert answer["r"]["output"]["exitCode"] == 0
    assert answer["r"]["output"]["stdout"] == ""
    assert host.process.returncode is None


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


async def test_a_required_protection_that_the_kernel_lacks_ends_it_with_78(start_host: StartHost, core: Core) -> None:
    """Where the kernel has all of them there is nothing to lack: then it starts."""
    host = await start_host(POD_HOST_CONFINEMENT="require:files,signals")
    started = await host.events.first(lambda event: event["event"] in ("worker.started", "worker.failed"))
    if started["event"] == "worker.started":
        assert {"files", "signals"} <= set(started["holds"])
        await core.connected()
    else:
        assert await host.ended() == 78


async def test_a_workspace_that_is_a_file_is_one_clear_line(start_host: StartHost, pod: Path) -> None:
    (pod / "file").write_text("")
    host = await start_host(POD_HOST_WORKSPACE_DIR=str(pod / "file"))
    failed = await host.event("worker.failed")
    assert str(pod / "file") in failed["reason"]
    assert await host.ended() == 78


async def test_a_harness_directory_that_cannot_be_used_is_one_clear_line(start_host: StartHost, pod: Path) -> None:
    (pod / "file").write_text("")
    host = await start_host(POD_HOST_HARNESS_DIR=str(pod / "file"))
    assert await host.ended() == 78
    assert host.other_lines[0].startswith("pod-host: POD_HOST_HARNESS_DIR is")


async def test_faults_of_the_environment_are_a_line_each(start_host: StartHost) -> None:
    host = await start_host(POD_HOST_SLOTS="none", NYLORUN_POD_UID="")
    assert await host.ended() == 78
    assert sorted(line.split()[1] for line in host.other_lines) == ["NYLORUN_POD_UID", "POD_HOST_SLOTS"]


async def test_roots_that_are_none_are_a_fault_of_the_environment(start_host: StartHost, pod: Path) -> None:
    (pod / "roots.pem").write_text("none")
    host = await start_host(NYLORUN_GATES_URL="https://127.0.0.1:1", POD_HOST_RUNTIME_CA=str(pod / "roots.pem"))
    assert await host.ended() == 78
    assert host.other_lines[0].startswith("pod-host: POD_HOST_RUNTIME_CA is")
