"""SIGTERM: at every point of a host's life it ends in order, with exit 0, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.host.conftest import HostProcess, StartHost
from tests.host.core import Core, calls, turn_start

Phase = Callable[[HostProcess, Core], Awaitable[None]]
"""Returns when the host is in it."""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.mark.parametrize("milliseconds", [1, 5, 20, 60, 120, 200, 300, 400, 500, 650, 800])
async def test_at_every_point_of_the_start_it_exits(start_host: StartHost, milliseconds: int) -> None:
    """It must never live on to the SIGKILL. Before Python runs, the signal's own default ends the process."""
    host = await start_host()
    await asyncio.sleep(milliseconds / 1000)  # the point of the start, not a wait for something
    host.terminate()
    assert await host.ended() in (0, -signal.SIGTERM)


async def at_the_network_gate(host: HostProcess, core: Core) -> None:
    await host.event("gate.open")


async def while_joining(host: HostProcess, core: Core) -> None:
    await core.joins.count(1)


async def while_connecting(host: HostProcess, core: Core) -> None:
    await core.upgrades.count(1)


async def before_hello_is_answered(host: HostProcess, core: Core) -> None:
    await core.connections.count(1)
    await core.connections.all[0].asked("hello")


async def in_setup(host: HostProcess, core: Core) -> None:
    await host.event("setup.step")


async def with_a_waiting_lease(host: HostProcess, core: Core) -> None:
    await (await core.connected()).asked("lease")


@pytest.mark.parametrize(
    "phase",
    [at_the_network_gate, while_joining, while_connecting, before_hello_is_answered, in_setup, with_a_waiting_lease],
)
async def test_in_every_phase_it_leaves_with_0_and_leaves_nothing(
    start_host: StartHost, core: Core, phase: Phase
) -> None:
    never = asyncio.Event()
    variables = {}
    server = None
    if phase is at_the_network_gate:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        variables = {"POD_HOST_NETWORK_GATE": "on", "NYLORUN_SANDBOX_BLOCKED_PROBE": f"127.0.0.1:{port}"}
    if phase is while_joining:
        core.on_join = lambda body: 503
    if phase is while_connecting:
        core.on_upgrade = lambda token: 503
    if phase is before_hello_is_answered:

        async def silent(method: str, params: object) -> None:
            if method == "hello":
                await never.wait()

        core.on_request = silent
    if phase is in_setup:
        core.setup = {"setup": {"commands": ["sleep 600"]}}
    host = await start_host(**variables)
    await phase(host, core)
    children = children_of(host.process.pid)
    host.terminate()
    host.terminate()  # a second one changes nothing
    assert await host.ended() == 0
    assert living(children) == []
    if server is not None:
        server.close()


async def test_a_log_that_nobody_reads_any_more_changes_nothing(start_host: StartHost, core: Core) -> None:
    host = await start_host()
    connection = await core.connected()
    host.stop_reading()
    await connection.close("reconnecting")
    await core.connected(2)
    host.terminate()
    assert await host.ended() == 0


async def test_sigint_is_the_same(start_host: StartHost, core: Core) -> None:
    host = await start_host()
    await core.connected()
    host.terminate(signal.SIGINT)
    assert await host.ended() == 0


async def test_a_workspace_request_is_answered_with_what_its_command_printed_until_then(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    host = await start_host()
    connection = await core.connected()
    asked = {
        "session": {"ownerId": "one"},
        "tool": "bash",
        "input": {"command": "echo partial; touch begun; sleep 600"},
    }
    waits = {
        "session": {"ownerId": "two"},
        "tool": "bash",
        "input": {"command": "until [ -e begun ]; do sleep 0.01; done"},
    }
    _, answer = await connection.begin("workspace.exec", asked)
    await connection.ask("workspace.exec", waits)
    host.terminate()
    output = (await answer)["r"]["output"]
    assert (output["exitCode"], output["stdout"]) == (130, "partial\n")
    assert await host.ended() == 0


async def test_clients_that_go_on_asking_do_not_hold_it_up(start_host: StartHost, core: Core) -> None:
    host = await start_host()
    connection = await core.connected()
    refusals: list[str] = []

    async def ask_and_ask(client: int) -> None:
        asked = {"session": {"ownerId": f"client-{client}"}, "tool": "bash", "input": {"command": "sleep 600"}}
        while True:
            answer = await connection.ask("workspace.exec", asked)
            if not answer["ok"]:
                refusals.append(answer["e"]["code"])
            await asyncio.sleep(0)

    clients = [asyncio.create_task(ask_and_ask(client)) for client in range(8)]
    states = 2 * len(clients)  # each sandbox is claimed as its first call is taken: creating, running
    await connection.frames.first(lambda _: sum(frame.get("m") == "event" for frame in connection.frames.all) >= states)
    host.terminate()
    assert await host.ended() == 0
    assert not [event for event in host.events.all if event["event"] == "shutdown.late"]
    assert set(refusals) <= {"unavailable"}
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def test_a_running_command_is_killed_its_outcome_reported_and_the_run_given_back(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    core.model = lambda body: calls("bash", {"command": "echo partial; touch begun; sleep 600"})
    host = await start_host()
    connection = await core.connected()
    await connection.offer("run-1", turn_start())
    await connection.ask(
        "workspace.exec",
        {
            "session": {"ownerId": "other"},
            "tool": "bash",
            "input": {"command": "until [ -e begun ]; do sleep 0.01; done"},
        },
    )
    host.terminate()
    assert await host.ended() == 0
    frames = connection.frames.all
    reported = [
        frame["p"]["value"]
        for frame in frames
        if frame.get("m") == "effect.outcome" and "output" in frame["p"]["value"]
    ]
    outcomes = [value["output"] for value in reported if isinstance(value["output"], dict)]
    assert [(outcome["exitCode"], outcome["stdout"]) for outcome in outcomes] == [(130, "partial\n")]
    released = [frame["p"] for frame in frames if frame.get("m") == "lease.release"]
    assert released == [{"runId": "run-1", "reason": "shutdown"}]
    order = [frame.get("m") for frame in frames]
    assert order.index("lease.release") > len(order) - 1 - order[::-1].index("effect.outcome")


async def test_a_runtime_that_answers_nothing_does_not_hold_it_up(start_host: StartHost, core: Core) -> None:
    core.model = lambda body: calls("bash", {"command": "sleep 600"})

    async def silent(method: str, params: object) -> None:
        if method in ("effect.outcome", "lease.release"):
            await asyncio.Event().wait()

    core.on_request = silent
    host = await start_host(POD_HOST_DRAIN_SECONDS="3")
    connection = await core.connected()
    await connection.offer("run-1", turn_start())
    await connection.asked("effect.outcome")
    host.terminate()
    assert await host.ended() == 0


async def test_a_stopped_host_that_goes_on_is_not_dead(start_host: StartHost, core: Core) -> None:
    host = await start_host(POD_HOST_RENEW_SECONDS="0.2")
    connection = await core.connected()
    await connection.asked("lease")
    os.kill(host.process.pid, signal.SIGSTOP)
    await asyncio.sleep(1)  # stopped for longer than several renewals
    before = len(core.renewals.all)
    os.kill(host.process.pid, signal.SIGCONT)
    await core.renewals.count(before + 1)
    assert len(core.renewals.all) <= before + 3  # no storm
    assert len(core.joins.all) == 1
    host.terminate()
    assert await host.ended() == 0
