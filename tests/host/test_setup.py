"""The Agent's setup: once per volume, resumed where it was cut off, and no reason not to take turns."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostProcess, StartHost
from tests.host.core import Connection, Core, said, turn_start


async def leasing(core: Core, number: int = 1) -> Connection:
    """Connection ``number``, once its host takes runs: the setup is over."""
    connection = await core.connected(number)
    await connection.asked("lease")
    return connection


async def restart(host: HostProcess, start_host: StartHost) -> HostProcess:
    host.terminate()
    assert await host.ended() == 0
    again: HostProcess = await start_host()
    return again


def events(host: HostProcess, name: str) -> list[dict[str, Any]]:
    return [event for event in host.events.all if event["event"] == name]


async def test_files_come_first_then_commands_each_with_its_own_variables(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    core.setup = {
        "setup": {
            "files": [
                {"path": "in/greeting.txt", "content": "hello"},
                {"path": "run.sh", "base64": "IyEvYmluL3NoCmVjaG8gcmFuCg==", "mode": "0755"},
            ],
            "commands": [
                "cat in/greeting.txt > seen",
                {"command": "pwd; echo $COLOUR; ../run.sh", "cwd": "in", "env": {"COLOUR": "blue"}},
            ],
        }
    }
    host = await start_host()
    await leasing(core)
    assert (pod / "workspace" / "seen").read_text() == "hello"
    steps = events(host, "setup.output")
    assert [(step["step"], step["of"], step["what"]) for step in steps] == [
        (1, 4, "in/greeting.txt"),
        (2, 4, "run.sh"),
        (3, 4, "cat in/greeting.txt > seen"),
        (4, 4, "pwd; echo $COLOUR; ../run.sh"),
    ]
    assert steps[3]["output"] == f"{pod}/workspace/in\nblue\nran"
    assert steps[3]["exitCode"] == 0
    assert events(host, "setup.done")
    assert "[4/4]" in (pod / "harness" / "home" / "setup.log").read_text()
    assert (pod / "harness" / "setup.json").stat().st_mode & 0o777 == 0o600


async def test_it_runs_once_per_volume(start_host: StartHost, core: Core, pod: Path) -> None:
    core.setup = {"setup": {"commands": ["echo once >> count"]}}
    host = await start_host()
    await leasing(core)
    again = await restart(host, start_host)
    await leasing(core, 2)
    assert (pod / "workspace" / "count").read_text() == "once\n"
    assert not events(again, "setup.started")


async def test_another_setup_on_a_volume_that_has_one_is_not_run(start_host: StartHost, core: Core, pod: Path) -> None:
    """A reset gives a new volume; on the old one another setup would run over what sessions made."""
    core.setup = {"setup": {"commands": ["echo one > which"]}}
    host = await start_host()
    await leasing(core)
    core.setup = {"setup": {"commands": ["echo two > which"]}}
    again = await restart(host, start_host)
    await again.event("setup.ignored")
    await leasing(core, 2)
    assert (pod / "workspace" / "which").read_text() == "one\n"


async def test_a_seeded_disk_runs_nothing(start_host: StartHost, core: Core, pod: Path) -> None:
    core.setup = {"seeded": True, "setup": {"commands": ["touch ran"]}}
    host = await start_host()
    await leasing(core)
    core.setup = {"setup": {"commands": ["touch ran"]}}
    await restart(host, start_host)
    await leasing(core, 2)
    assert not (pod / "workspace" / "ran").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_it_goes_on_at_the_step_that_was_cut_off_though_it_is_not_sent_again(
    start_host: StartHost, core: Core, pod: Path, how: signal.Signals
) -> None:
    workspace = pod / "workspace"
    core.setup = {
        "setup": {
            "commands": [
                "echo 1 >> steps",
                "echo 2 >> steps; [ -e second ] || { touch second; sleep 600; }",
                "echo 3 >> steps",
            ]
        }
    }
    host = await start_host()
    await host.events.first(lambda event: event["event"] == "setup.step" and event["step"] == 2)
    connection = await core.connected()
    written = {
        "session": {"ownerId": "s"},
        "tool": "bash",
        "input": {"command": "until [ -e second ]; do sleep 0.01; done"},
    }
    await connection.ask("workspace.exec", written)
    host.terminate(how)
    await host.ended()
    core.setup = {}
    await start_host()
    await leasing(core, 2)
    assert (workspace / "steps").read_text() == "1\n2\n2\n3\n"
    record = json.loads((pod / "harness" / "setup.json").read_text())
    assert (record["state"], record["setup"]) == ("done", None)


async def test_a_failure_stops_the_rest_and_every_turn_tells_the_model(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    core.setup = {"setup": {"commands": ["echo fetching; echo no such package >&2; exit 9", "touch never"]}}
    prompts: list[str] = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        prompts.append(json.dumps(body))
        return said("Done.")

    core.model = model
    host = await start_host()
    connection = await leasing(core)
    (failed,) = events(host, "setup.failed")
    assert (failed["step"], failed["of"], failed["exitCode"]) == (1, 2, 9)
    assert failed["output"] == "fetching\nno such package"
    assert not (pod / "workspace" / "never").exists()
    assert "no such package" in (pod / "harness" / "home" / "setup.log").read_text()
    await connection.offer("run-1", turn_start())
    await connection.asked("turn.completed")
    core.setup = {}
    await restart(host, start_host)
    connection = await leasing(core, 2)
    await connection.offer("run-2", turn_start(turn_id="turn-2"))
    await connection.asked("turn.completed")
    assert len(prompts) == 2
    for prompt in prompts:
        assert "failed at step 1 of 2" in prompt
        assert "no such package" in prompt
    assert not (pod / "workspace" / "never").exists()


async def test_what_cannot_be_understood_fails_at_its_place(start_host: StartHost, core: Core, pod: Path) -> None:
    core.setup = {"setup": {"files": [{"path": "a", "content": "a"}, {"path": "b", "sha256": "sha256:00"}]}}
    host = await start_host()
    await leasing(core)
    (failed,) = events(host, "setup.failed")
    assert failed["step"] == 2
    assert "base64 or content" in failed["reason"]
    assert (pod / "workspace" / "a").exists()


async def test_a_file_outside_the_workspace_is_refused(start_host: StartHost, core: Core, pod: Path) -> None:
    core.setup = {"setup": {"files": [{"path": "../harness/volume-id", "content": "mine"}]}}
    host = await start_host()
    await leasing(core)
    assert events(host, "setup.failed")
    assert (pod / "harness" / "volume-id").read_text() != "mine"


async def test_a_command_that_takes_too_long_is_a_failure(start_host: StartHost, core: Core) -> None:
    core.setup = {"setup": {"commands": [{"command": "sleep 600", "timeoutMs": 100}]}}
    host = await start_host()
    await leasing(core)
    (failed,) = events(host, "setup.failed")
    assert failed["reason"] == "its time was over"


async def test_a_step_whose_worker_died_runs_again_once(start_host: StartHost, core: Core, pod: Path) -> None:
    core.setup = {"setup": {"commands": ["echo x >> count; [ $(wc -l < count) = 2 ] || sleep 600"]}}
    host = await start_host()
    connection = await core.connected()
    await connection.ask(
        "workspace.exec",
        {"session": {"ownerId": "s"}, "tool": "bash", "input": {"command": "until [ -e count ]; do sleep 0.01; done"}},
    )
    _kill_worker(host)
    await connection.asked("lease")
    assert (pod / "workspace" / "count").read_text() == "x\nx\n"
    assert events(host, "setup.done")


async def test_a_record_that_cannot_be_read_runs_nothing_and_turns_are_taken(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    (pod / "harness" / "setup.json").write_text("half a rec")
    core.setup = {"setup": {"commands": ["touch ran"]}}
    prompts: list[str] = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        prompts.append(json.dumps(body))
        return said("Done.")

    core.model = model
    await start_host()
    connection = await leasing(core)
    await connection.offer("run-1", turn_start())
    await connection.asked("turn.completed")
    assert "could not be run" in prompts[0]
    assert not (pod / "workspace" / "ran").exists()


def _kill_worker(host: HostProcess) -> None:
    import os

    children = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if "worker.main" in Path(f"/proc/{pid}/cmdline").read_text()]
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


async def test_text_that_is_no_unicode_fails_at_its_step_and_not_the_join(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    core.setup = {"setup": {"commands": ["touch first", "echo \ud83d", "touch third"]}}
    host = await start_host()
    await leasing(core)
    assert (pod / "workspace" / "first").exists()
    assert not events(host, "host.fault")
    assert len(core.joins.all) == 1
    assert json.loads((pod / "harness" / "setup.json").read_text())["state"] in ("done", "failed")


async def test_a_long_command_is_named_by_its_beginning(start_host: StartHost, core: Core) -> None:
    core.setup = {"setup": {"commands": ["true " + "x" * 10_000]}}
    host = await start_host()
    await leasing(core)
    (step,) = events(host, "setup.output")
    assert len(step["what"]) < 300
