"""The whole life of a host process, against a scripted Runtime on a real socket."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from pod_host.client.retry import no_waiting
from pod_host.host import life
from pod_host.host.life import spread
from tests.host.conftest import StartHost
from tests.host.core import Core


async def test_it_joins_connects_says_hello_and_waits_for_a_run(start_host: StartHost, core: Core, pod: Path) -> None:
    host = await start_host()
    connection = await core.connected()
    assert core.joins.all == [
        {
            "sandboxId": "sbx",
            "podUid": "pod-uid-1",
            "joinToken": "join-token-1",
            "volumeId": (pod / "harness" / "volume-id").read_text().strip(),
        }
    ]
    assert uuid.UUID(core.joins.all[0]["volumeId"]).version == 4
    hello = await connection.asked("hello")
    assert hello.keys() == {"api", "name", "version", "features"}
    assert (hello["api"], hello["name"]) == (5, "pod-host")
    assert await connection.asked("lease") == {}
    host.terminate()
    assert await host.ended() == 0
    abort = await connection.frames.first(lambda frame: frame["t"] == "abort")
    lease = await connection.frames.first(lambda frame: frame.get("m") == "lease")
    assert abort["id"] == lease["id"]
    assert (await connection.closed)[0] == 1000


async def test_no_token_and_no_join_token_reaches_a_command_or_the_log(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    host = await start_host(POD_HOST_LOG_LEVEL="debug")
    connection = await core.connected()
    looked = await connection.ask(
        "workspace.exec",
        {
            "session": {"ownerId": "session-1", "activeTurnId": None},
            "spec": {},
            "tool": "bash",
            "input": {"command": f"env; cat /proc/[0-9]*/environ; cat {pod}/join/token {pod}/harness/*; id -u"},
        },
    )
    output = looked["r"]["output"]
    seen = output["stdout"] + output["stderr"]
    assert "host-1-" not in seen
    assert "join-token-1" not in seen
    assert "HTTPS_PROXY=http://nylorun:egress-1-1@127.0.0.1:9" in output["stdout"]
    assert "NYLORUN_" not in output["stdout"]
    host.terminate()
    assert await host.ended() == 0
    for secret in ("host-1-", "egress-1-", "join-token-1"):
        assert secret not in host.log


async def test_a_lost_connection_is_renewed_for_and_made_again(start_host: StartHost, core: Core) -> None:
    await start_host()
    first = await core.connected()
    await first.close("reconnecting")
    await core.connected(2)
    assert len(core.joins.all) == 1
    assert [refusal for _, refusal in core.renewals.all] == [None]
    assert core.upgrades.all[1][0] != core.upgrades.all[0][0]


async def test_a_moved_epoch_makes_it_join_again(start_host: StartHost, core: Core) -> None:
    await start_host()
    first = await core.connected()
    core.epoch += 1  # another pod joined
    await first.close("the sandbox's host epoch moved")
    await core.connected(2)
    assert [refusal for _, refusal in core.renewals.all] == [401]
    assert len(core.joins.all) == 2
    assert core.joins.all[0] == core.joins.all[1]


async def test_a_renewal_that_is_refused_closes_the_connection_and_joins(start_host: StartHost, core: Core) -> None:
    await start_host(POD_HOST_RENEW_SECONDS="0.2")
    first = await core.connected()
    core.epoch += 1
    await first.closed
    await core.connected(2)
    assert len(core.joins.all) == 2


async def test_a_renewal_that_is_answered_503_keeps_the_token_and_does_not_join(
    start_host: StartHost, core: Core
) -> None:
    """A join would fence: while the token lives, the host comes back with it."""
    core.on_renew = lambda token: 503
    await start_host()
    first = await core.connected()
    await first.close("reconnecting")
    await core.connected(2)
    assert len(core.joins.all) == 1
    assert core.upgrades.all[1] == core.upgrades.all[0]


async def test_a_token_that_the_upgrade_refuses_is_joined_for_anew(start_host: StartHost, core: Core) -> None:
    core.on_renew = lambda token: 503
    await start_host()
    first = await core.connected()
    core.epoch += 1
    await first.close("the sandbox's host epoch moved")
    await core.connected(2)
    assert len(core.joins.all) == 2


async def test_the_runtime_may_go_and_come_back(start_host: StartHost, core: Core) -> None:
    await start_host()
    await core.connected()
    await core.stop()
    await core.start()
    await core.connected(2)
    assert len(core.joins.all) == 1


async def test_hello_is_tried_in_other_forms_on_new_connections_and_the_form_is_remembered(
    start_host: StartHost, core: Core
) -> None:
    core.on_hello = lambda params: "invalid" if params["features"] else None
    await start_host()
    connection = await core.connected(3)
    hellos = [await each.asked("hello") for each in core.connections.all]
    assert [hello["features"] for hello in hellos] == [{"workspace": {"backends": ["local"]}}, {"workspace": True}, {}]
    assert len(core.joins.all) == 1
    await connection.asked("lease")
    await connection.close("reconnecting")
    assert (await (await core.connected(4)).asked("hello"))["features"] == {}


async def test_a_hello_that_is_refused_in_every_form_is_tried_for_good(start_host: StartHost, core: Core) -> None:
    core.on_hello = lambda params: "invalid"
    await start_host()
    await core.connections.count(5)
    core.on_hello = lambda params: None
    connection = await core.connected(6)
    await connection.asked("lease")


async def test_a_changed_certificate_of_a_renewal_is_what_commands_trust(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    from tests.host.test_trust import certificate, subjects

    host = await start_host(POD_HOST_RENEW_SECONDS="0.2")
    await core.connected()
    bundle = pod / "harness" / "egress-ca-bundle.pem"
    await host.event("trust.written")
    assert "Egress one" in subjects(bundle)
    core.certificate = certificate("Egress two")
    await host.events.first(lambda event: event["event"] == "trust.written", after=len(host.events.all))
    assert "Egress two" in subjects(bundle)


async def test_an_unreadable_volume_id_keeps_it_from_joining_and_alive(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    (pod / "harness" / "volume-id").write_text("two words\n")
    host = await start_host()
    failed = await host.event("join.unavailable")
    assert "volume-id" in failed["reason"]
    assert core.joins.all == []
    (pod / "harness" / "volume-id").write_text("volume-7\n")
    await core.connected()
    assert core.joins.all[0]["volumeId"] == "volume-7"


async def test_the_network_gate_comes_before_everything(start_host: StartHost, core: Core) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    host = await start_host(POD_HOST_NETWORK_GATE="on", NYLORUN_SANDBOX_BLOCKED_PROBE=f"127.0.0.1:{port}")
    await host.event("gate.open")
    assert core.joins.all == []
    server.close()
    await host.event("gate.passed")
    await core.connected()


async def test_a_runtime_that_refuses_every_upgrade_is_tried_for_good(start_host: StartHost, core: Core) -> None:
    core.on_upgrade = lambda token: 503 if len(core.upgrades.all) < 3 else None
    await start_host()
    await core.connected()
    assert len(core.joins.all) == 1


def test_returns_are_spread_out_from_the_first_and_never_far_apart() -> None:
    firsts = [spread(0) for _ in range(200)]
    assert min(firsts) >= 0.1
    assert max(firsts) <= 2.0
    assert max(firsts) - min(firsts) > 1.0
    once = [spread(3) for _ in range(200)]  # over the whole period, which every later wait keeps
    assert min(once) < 1.0
    assert 9.0 < max(once) <= 10.0
    assert {spread(tries) for tries in range(4, 2000)} == {10.0}


async def test_a_fault_of_ours_is_told_and_is_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0
    enough = asyncio.Event()

    async def step() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            enough.set()
            await asyncio.Event().wait()
        raise KeyError("oops")

    with no_waiting():
        going = asyncio.create_task(life._for_good(step))
        await enough.wait()
    going.cancel()
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
