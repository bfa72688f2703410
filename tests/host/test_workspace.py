"""The ``workspace.*`` requests and the claims beside them, on a real host with a real sandbox."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.host.conftest import StartHost
from tests.host.core import Connection, Core, calls, said, turn_start


def call(tool: str, owner: str = "session-1", **tool_input: Any) -> dict[str, Any]:
    return {"session": {"ownerId": owner, "activeTurnId": None}, "spec": {}, "tool": tool, "input": tool_input}


@pytest.fixture
async def connection(start_host: StartHost, core: Core) -> Connection:
    await start_host()
    return await core.connected()


def claims(connection: Connection, kind: str) -> list[dict[str, Any]]:
    return [frame["p"] for frame in connection.frames.all if frame.get("m") == "event" and frame["p"]["type"] == kind]


async def test_write_read_and_exec_answer_as_the_tools_do(connection: Connection, pod: Path) -> None:
    wrote = await connection.ask("workspace.write", call("write", path="a.txt", content="one\ntwo\n"))
    assert wrote["r"] == {"kind": "completed", "output": {"path": f"{pod}/workspace/a.txt", "bytes": 8}}
    read = await connection.ask("workspace.read", call("read", path="a.txt"))
    assert read["r"] == {"kind": "completed", "output": "1\tone\n2\ttwo"}
    ran = await connection.ask("workspace.exec", call("bash", command="cat a.txt; exit 3"))
    assert ran["r"]["output"]["exitCode"] == 3
    assert ran["r"]["output"]["stdout"] == "one\ntwo\n"
    missing = await connection.ask("workspace.read", call("read", path="b.txt"))
    assert missing["r"]["code"] == "sandbox.not_found"


async def test_an_input_that_does_not_fit_is_a_failed_outcome(connection: Connection) -> None:
    answer = await connection.ask("workspace.exec", call("bash", command=7))
    assert answer["ok"] is True
    assert (answer["r"]["kind"], answer["r"]["code"]) == ("failed", "tool.invalid-input")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("workspace.exec", call("read", path="a")),
        ("workspace.read", call("bash", command="true")),
        ("workspace.read", {"disk": "list"}),
        ("workspace.write", {"tool": "write", "input": "text"}),
        ("workspace.unknown", {}),
    ],
)
async def test_what_is_no_request_is_refused_as_invalid(connection: Connection, method: str, params: Any) -> None:
    answer = await connection.ask(method, params)
    assert (answer["ok"], answer["e"]["code"]) == (False, "invalid")


async def test_a_request_that_is_given_up_kills_its_command(connection: Connection, pod: Path) -> None:
    number, answer = await connection.begin("workspace.exec", call("bash", command="echo $$ > pid; sleep 600"))
    await connection.ask("workspace.exec", call("bash", owner="other", command="until [ -s pid ]; do sleep 0.01; done"))
    await connection.send({"t": "abort", "id": number})
    assert (await answer)["ok"] is False
    await gone(connection, (pod / "workspace" / "pid").read_text().strip())


async def test_a_lost_connection_kills_its_commands(connection: Connection, core: Core, pod: Path) -> None:
    await connection.begin("workspace.exec", call("bash", command="echo $$ > pid; sleep 600"))
    await connection.ask("workspace.exec", call("bash", owner="other", command="until [ -s pid ]; do sleep 0.01; done"))
    await connection.close("core is stopping")
    await gone(await core.connected(2), (pod / "workspace" / "pid").read_text().strip())


async def gone(connection: Connection, pid: str) -> None:
    """Until the process is."""
    command = f"for i in $(seq 500); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.01; done; exit 1"
    answer = await connection.ask("workspace.exec", call("bash", owner="third", command=command))
    assert answer["r"]["output"]["exitCode"] == 0


SERVER = """
    python3 -uc 'import socket, time; s = socket.create_server(("127.0.0.1", 0)); print("up"); time.sleep(600)' > up 2>&1 &
    until grep -q up up; do sleep 0.01; done
"""


async def test_the_report_says_what_the_sandbox_is_and_what_lives_in_it(connection: Connection) -> None:
    """In the members that a strict Runtime takes, and no other."""
    output = await connection.ask("workspace.exec", call("bash", command=SERVER))
    (server,) = output["r"]["output"]["background"]
    (port,) = server["ports"]
    report = (await connection.ask("workspace.report", {}))["r"]
    assert report == {
        "preference": "auto",
        "backend": "local",
        "isolation": "container",
        "reason": "the sandbox is this pod",
        "probes": [
            {"name": "local", "available": True, "isolation": "container"},
            {
                "name": f"process:{server['pid']}",
                "available": True,
                "isolation": "container",
                "reason": f"{server['command']}; listens on {port}",
            },
        ],
        "defaultImage": "",
    }


async def test_sweep_and_remove_have_nothing_to_do_in_a_pod(connection: Connection) -> None:
    assert (await connection.ask("workspace.sweep", {"now": 1}))["r"] == {"workspaces": []}
    assert (await connection.ask("workspace.remove", {"all": True}))["r"] == {}


async def test_a_request_claims_the_state_once_and_each_call(connection: Connection) -> None:
    await connection.ask("workspace.exec", call("bash", command="x" * 600))
    await connection.ask("workspace.read", call("grep", pattern="needle"))
    await connection.ask("workspace.read", call("read", path="missing"))
    states = claims(connection, "sandbox.state")
    assert [state["payload"]["state"] for state in states] == ["creating", "running"]
    assert {state["sessionId"] for state in states} == {"session-1"}
    assert states[0].keys() == {"sessionId", "turnId", "type", "payload"}
    bash, grep, read = [claim["payload"] for claim in claims(connection, "sandbox.exec")]
    assert bash.pop("durationMs") >= 0
    assert bash == {"tool": "bash", "command": "x" * 500, "exitCode": 127, "killed": False, "outcome": "completed"}
    assert (grep["command"], grep["outcome"]) == ("needle", "completed")
    assert (read["path"], read["outcome"], read["code"]) == ("missing", "failed", "sandbox.not_found")


async def test_claims_go_out_before_the_answer_and_nothing_waits_for_them(core: Core, start_host: StartHost) -> None:
    async def leave_claims_unanswered(method: str, params: object) -> dict[str, Any] | None:
        if method == "event":
            await asyncio.Event().wait()
        return None

    core.on_request = leave_claims_unanswered
    await start_host()
    connection = await core.connected()
    for number in range(3):
        before = len(connection.frames.all)
        await connection.ask("workspace.exec", call("bash", command="true"))
        kinds = [frame.get("m", "answer") for frame in connection.frames.all[before:] if frame.get("m") != "lease"]
        assert kinds == ["event"] * (3 if number == 0 else 1) + ["answer"]


async def test_a_claim_that_is_refused_changes_nothing(core: Core, start_host: StartHost) -> None:
    async def refuse(method: str, params: object) -> dict[str, Any] | None:
        return {"refuse": "run_not_held"} if method == "event" else None

    core.on_request = refuse
    await start_host()
    connection = await core.connected()
    answer = await connection.ask("workspace.exec", call("bash", command="echo ok"))
    assert answer["r"]["output"]["stdout"] == "ok\n"


async def test_a_turns_calls_get_the_sessions_variables_the_token_of_the_moment_and_the_trace(
    core: Core, start_host: StartHost
) -> None:
    asked: list[dict[str, Any]] = []

    def model(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        command = "echo $COLOUR $TRACEPARENT $HTTPS_PROXY $SSL_CERT_FILE"
        return calls("bash", {"command": command}) if len(asked) == 1 else said("Done.")

    async def with_trace(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "effect.intent" and params["effect"]["kind"] == "tool":
            return {"status": "execute", "traceparent": "00-1-2-01"}
        return None

    core.model, core.on_request = model, with_trace
    await start_host(POD_HOST_RENEW_SECONDS="0.2")
    connection = await core.connected()
    await core.renewals.count(1)
    await connection.offer("run-1", turn_start())
    await connection.asked("turn.completed")
    outcomes = [frame["p"]["value"] for frame in connection.frames.all if frame.get("m") == "effect.outcome"]
    (stdout,) = [value["output"]["stdout"] for value in outcomes if value.get("kind") == "completed"]
    colour, trace, proxy, bundle = stdout.split()
    assert (colour, trace) == ("blue", "00-1-2-01")
    assert proxy.startswith("http://nylorun:egress-1-")
    assert not proxy.startswith("http://nylorun:egress-1-1@")
    assert os.path.basename(bundle) == "egress-ca-bundle.pem"
    (claim,) = claims(connection, "sandbox.exec")
    assert (claim["runId"], claim["sessionId"], claim["turnId"]) == ("run-1", "session-1", "turn-1")


async def test_an_egress_token_of_any_characters_is_a_password_that_clients_can_read(
    core: Core, start_host: StartHost
) -> None:
    core.egress_suffix = "%2F+/=@:#?"
    await start_host()
    connection = await core.connected()
    answer = await connection.ask("workspace.exec", call("bash", command="echo $https_proxy"))
    proxy = urlsplit(answer["r"]["output"]["stdout"].strip())
    assert (proxy.username, proxy.hostname, proxy.port) == ("nylorun", "127.0.0.1", 9)
    assert unquote(proxy.password or "") == "egress-1-1%2F+/=@:#?"


async def test_without_a_proxy_there_are_no_proxy_variables(core: Core, start_host: StartHost) -> None:
    await start_host(NYLORUN_EGRESS_PROXY="", HTTPS_PROXY="http://elsewhere:1")
    connection = await core.connected()
    answer = await connection.ask("workspace.exec", call("bash", command="env | grep -i proxy"))
    assert answer["r"]["output"]["stdout"] == ""


async def test_pings_and_renewals_go_on_while_a_command_and_a_huge_frame_keep_things_busy(
    core: Core, start_host: StartHost, pod: Path
) -> None:
    from tests.host import core as scripted

    core.model = lambda body: calls("bash", {"command": "while :; do :; done"})
    core.hello = {**scripted.HELLO, "renewEveryMs": 50}
    await start_host()
    connection = await core.connected()
    await connection.offer("run-1", turn_start())
    await connection.asked("lease.renew")
    huge = asyncio.ensure_future(
        connection.ask("workspace.write", call("write", owner="other", path="big", content="x" * 20_000_000))
    )
    renewals = 0
    while not huge.done():
        await connection.asked("lease.renew", after=len(connection.frames.all))
        renewals += 1
    assert (await huge)["r"]["output"]["bytes"] == 20_000_000
    assert renewals >= 2
    assert not connection.closed.done()
