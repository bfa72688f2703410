"""The harness listener's statuses, and joining and renewing, over raw HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import jwt
import pytest
from websockets.exceptions import InvalidStatus

from pod_host.dev.agent import Agent
from pod_host.dev.config import Times
from pod_host.errors import ConfigurationError
from tests.dev.conftest import Build, World
from tests.dev.harness import WAIT, Pod, Refused, hello_params

PATH = "/nylorun/harness/v1"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Nylorun-Harness-Api": "1",
}


async def upgrade(pod: Pod, path: str = PATH, **headers: str | None) -> httpx.Response:
    sent = {**UPGRADE, "Authorization": f"Bearer {pod.host_token}"}
    for name, value in headers.items():
        sent.pop(name.replace("_", "-"), None)
        if value is not None:
            sent[name.replace("_", "-")] = value
    return await pod.http.get(f"{pod.url}{path}", headers=sent)


async def test_each_fault_of_an_upgrade_has_its_own_status(world: World) -> None:
    pod = world.pod
    await pod.join()
    assert (await upgrade(pod, "/nylorun/harness/v2")).status_code == 404
    assert (await upgrade(pod, Host="elsewhere:4200")).status_code == 421
    for bearer in (None, "Bearer", "Basic abc", "Bearer not-a-token", f"Bearer {pod.egress_token}"):
        refused = await upgrade(pod, Authorization=bearer)
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    for version in (None, "2", "01"):
        refused = await upgrade(pod, Nylorun_Harness_Api=version)
        assert (refused.status_code, refused.headers["nylorun-harness-api"]) == (426, "1")
    assert refused.headers["Connection"].lower() == "close"
    assert refused.headers["Content-Length"] == "0"


async def test_the_checks_come_in_cores_order(world: World) -> None:
    pod = world.pod
    await pod.join()
    # Path before Host before bearer before version before the token itself.
    assert (await upgrade(pod, "/x", Host="no:1", Authorization=None)).status_code == 404
    assert (await upgrade(pod, Host="no:1", Authorization=None)).status_code == 421
    assert (await upgrade(pod, Authorization=None, Nylorun_Harness_Api=None)).status_code == 401
    stale = pod.host_token
    await pod.join()
    assert (await upgrade(pod, Authorization=f"Bearer {stale}", Nylorun_Harness_Api=None)).status_code == 426
    assert (await upgrade(pod, Authorization=f"Bearer {stale}")).status_code == 401


async def test_a_plain_request_is_told_to_upgrade(world: World) -> None:
    response = await world.pod.http.get(f"{world.pod.url}{PATH}")
    assert (response.status_code, response.headers["nylorun-harness-api"]) == (426, "1")


async def test_a_join_answers_tokens_of_the_right_kinds(world: World) -> None:
    answer = await world.pod.join()
    assert set(answer) == {"hostToken", "egressToken", "sandboxId", "epoch", "expiresAt", "caCertificate"}
    status = world.runtime.status()
    for name, typ, audience in (
        ("hostToken", "nylorun-host+jwt", "nylorun-harness-api"),
        ("egressToken", "nylorun-egress+jwt", "nylorun-egress"),
    ):
        assert jwt.get_unverified_header(answer[name]) == {"alg": "ES256", "typ": typ}
        claims: dict[str, Any] = jwt.decode(answer[name], options={"verify_signature": False})
        assert claims["aud"] == audience
        assert claims["iss"] == f"urn:nylorun:tenant:{status['tenantId']}"
        assert (claims["sbx"], claims["epc"], claims["pod"]) == (status["sandboxId"], 1, "pod-1")
        assert ("sub" in claims) == (name == "hostToken")
        assert claims["exp"] - claims["iat"] == 900
        assert claims["exp"] > time.time()


async def test_a_join_answer_is_not_cached_and_ends_the_connection(world: World) -> None:
    response = await world.pod.join_answer()
    assert (response.headers["cache-control"], response.headers["connection"]) == ("no-store", "close")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"sandboxId": 1}', b'{"x": "' + b"y" * 9000 + b'"}'],
    ids=["empty", "not JSON", "no object", "wrong type", "over 8 KiB"],
)
async def test_a_malformed_join_is_invalid(world: World, body: bytes) -> None:
    response = await world.pod.http.post(f"{world.pod.url}{PATH}/host/join", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid")


@pytest.mark.parametrize(
    "change",
    [{"podUid": "a b"}, {"volumeId": "x" * 65}, {"joinToken": ""}, {"extra": 1}],
    ids=lambda change: next(iter(change)),
)
async def test_a_join_with_a_wrong_member_is_invalid(world: World, change: dict[str, Any]) -> None:
    response = await world.pod.join_answer(**change)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid")


async def test_refused_joins_all_look_alike_and_the_record_knows_why(world: World) -> None:
    for change in ({"joinToken": "wrong"}, {"sandboxId": "sbx_other"}):
        response = await world.pod.join_answer(**change)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert response.json() == {"error": {"code": "unauthorized", "message": "The join was refused"}}
    reasons = [event["reason"] for event in await world.north.events() if event["type"] == "host.refused"]
    assert reasons == ["the join token is not the sandbox's", "no sandbox sbx_other"]


async def test_other_methods_and_hosts_are_refused_at_join(world: World) -> None:
    response = await world.pod.http.get(f"{world.pod.url}{PATH}/host/join")
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    response = await world.pod.http.post(f"{world.pod.url}{PATH}/host/join", headers={"Host": "elsewhere"})
    assert response.status_code == 421


async def test_another_volume_or_none_loses_the_sandbox_for_good(world: World) -> None:
    await world.pod.join()
    assert (await world.pod.join_answer(volumeId="volume-2")).status_code == 401
    assert (await world.pod.join_answer()).status_code == 401
    assert (await world.pod.renew()).status_code == 401
    kinds = [event["type"] for event in await world.north.events()]
    assert "sandbox.lost" in kinds


async def test_a_volume_that_is_named_later_is_recorded_then(world: World) -> None:
    assert (await world.pod.join_answer(volumeId=None)).status_code == 200
    assert (await world.pod.join_answer(volumeId="late")).status_code == 200
    assert (await world.pod.join_answer(volumeId=None)).status_code == 401


async def test_a_renewal_keeps_the_epoch_and_the_old_token(world: World) -> None:
    joined = await world.pod.join()
    renewed = (await world.pod.renew()).json()
    assert renewed["epoch"] == joined["epoch"] == 1
    assert renewed["hostToken"] != joined["hostToken"]
    assert (await world.pod.renew(joined["hostToken"])).status_code == 200
    assert "setup" not in renewed


async def test_renewals_of_other_tokens_are_refused(build: Build) -> None:
    world = await build(times=Times(token=1))
    await world.pod.join()
    for token in ("junk", world.pod.egress_token):
        response = await world.pod.renew(token)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")
    async with asyncio.timeout(WAIT):
        while (await world.pod.renew()).status_code == 200:
            pass  # until the first token is over, which each of these asks with


async def test_a_join_fences_the_host_before_it(world: World) -> None:
    async with world.pod.connected() as channel:
        other = world.other_pod(pod_uid="pod-2")
        answer = await other.join()
        assert answer["epoch"] == 2
        assert await channel.closed() == (1000, "the sandbox's host epoch moved")
        assert (await world.pod.renew()).status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            async with world.pod.socket():
                pass
        assert refused.value.response.status_code == 401
        await other.close()
    kinds = [event["type"] for event in await world.north.events()]
    assert kinds.count("sandbox.running") == 1
    assert kinds.count("sandbox.relaunched") == 1


async def test_setup_comes_with_joins_until_the_host_asks_for_a_run(build: Build) -> None:
    setup = {"files": [{"path": "a", "content": "b"}], "commands": ["true"]}
    world = await build(Agent(name="with-setup", setup=setup))
    assert (await world.pod.join())["setup"] == setup
    assert (await world.pod.join())["setup"] == setup
    async with world.pod.connected() as channel:
        await channel.start("lease", {})
        with pytest.raises(Refused):
            await channel.ask("hello", hello_params())  # a round trip: the lease has arrived
    assert "setup" not in await world.pod.join()


async def test_a_seeded_disk_has_no_setup_to_run(build: Build) -> None:
    world = await build(Agent(name="seeded", setup={"commands": ["false"]}), seeded=True)
    answer = await world.pod.join()
    assert answer["seeded"] is True
    assert "setup" not in answer


async def test_a_taken_port_is_one_clear_error(world: World, build: Build) -> None:
    port = int(world.runtime.harness_url.rpartition(":")[2])
    with pytest.raises(ConfigurationError) as fault:
        await build(harness_port=port, state_dir=world.config.state_dir.parent / "other")
    assert fault.value.faults == (f"harness port {port} on 127.0.0.1 is taken",)


async def test_a_state_directory_is_used_by_one_runtime_at_a_time(world: World, build: Build) -> None:
    with pytest.raises(ConfigurationError, match="another Runtime is running on it"):
        await build()


async def test_a_stopped_runtime_says_so_to_its_hosts(world: World) -> None:
    async with world.pod.connected() as channel:
        await world.runtime.stop()
        assert await channel.closed() == (1001, "core is stopping")


async def test_a_further_host_name_is_answered_to(build: Build) -> None:
    world = await build(allowed_hosts=("Runtime.test:4200",))
    named = {"Host": "runtime.test:4200"}
    response = await world.pod.http.post(f"{world.pod.url}{PATH}/host/join", headers=named)
    assert response.status_code == 400
    response = await world.pod.http.post(f"{world.runtime.gates_url}/nylorun/v1/model-calls", headers=named)
    assert response.status_code == 401


async def test_a_runtime_that_stops_answers_503(build: Build) -> None:
    world = await build()
    async with world.pod.connected() as channel:
        await world.north.say(await world.north.session())
        await channel.lease()  # held: the stop waits for it a moment
        stopping = asyncio.create_task(world.runtime.stop())
        await channel.message()
        response = await world.pod.join_answer()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
        assert (await upgrade(world.pod)).status_code == 503
        await stopping
