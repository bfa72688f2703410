"""The channel against a WebSocket server on loopback: requests, served requests, messages, aborts both ways."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pod_host import __version__
from pod_host.contract.base import Empty, JsonObject, Wire
from pod_host.contract.effects import OutcomeParams
from pod_host.contract.work import Cancel, RenewResult, RunParams
from pod_host.errors import ContractViolation, RuntimeRefusal, SandboxError
from tests.client.peers import TOKEN, Core, channel, core, in_task, until_closed

RUN = RunParams(run_id="r1")


async def test_the_upgrade_carries_the_bearer_and_the_transport_version() -> None:
    async with core(until_closed) as listener, channel(listener.url):
        pass
    [upgrade] = listener.upgrades
    assert listener.paths == ["/nylorun/harness/v1"]
    assert upgrade["authorization"] == f"Bearer {TOKEN}"
    assert upgrade["nylorun-harness-api"] == "1"
    assert upgrade["host"] == listener.url.removeprefix("http://")
    assert upgrade["user-agent"] == f"pod-host/{__version__}"
    assert "sec-websocket-extensions" not in upgrade


async def test_no_proxy_variable_turns_the_connection_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with core(until_closed) as listener, channel(listener.url):
        assert len(listener.upgrades) == 1


async def test_a_request_is_answered_with_its_methods_model() -> None:
    asked: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        asked.append(await peer.answer({"ok": True, "token": "next", "later": "unknown members are dropped"}))
        asked.append(await peer.answer({"ok": False}))
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        renewed = await ours.request("lease.renew", RUN)
        assert isinstance(renewed, RenewResult)
        assert (renewed.ok, renewed.token) == (True, "next")
        assert (await ours.request("lease.renew", RUN)).ok is False
    assert asked == [
        {"t": "req", "id": 1, "m": "lease.renew", "p": {"runId": "r1"}},
        {"t": "req", "id": 2, "m": "lease.renew", "p": {"runId": "r1"}},
    ]


async def test_answers_come_in_any_order() -> None:
    async def behaviour(peer: Core) -> None:
        first, second = await peer.hear(), await peer.hear()
        await peer.say({"t": "res", "id": second["id"], "ok": True, "r": {"ok": True, "token": "second"}})
        await peer.say({"t": "res", "id": first["id"], "ok": True, "r": {"ok": True, "token": "first"}})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        first, second = await asyncio.gather(ours.request("lease.renew", RUN), ours.request("lease.renew", RUN))
    assert (first.token, second.token) == ("first", "second")


async def test_a_refusal_carries_the_runtimes_code() -> None:
    async def behaviour(peer: Core) -> None:
        asked = await peer.hear()
        refused = {"code": "run_not_held", "message": "not yours"}
        await peer.say({"t": "res", "id": asked["id"], "ok": False, "e": refused})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(RuntimeRefusal) as refusal:
            await ours.request("lease.renew", RUN)
    assert (refusal.value.code, refusal.value.message) == ("run_not_held", "not yours")


async def test_an_answer_outside_its_shape_fails_its_request_alone() -> None:
    async def behaviour(peer: Core) -> None:
        await peer.answer({"ok": "perhaps"})
        await peer.answer({"ok": True})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(RuntimeRefusal, match=r"Invalid lease\.renew answer: ok") as refusal:
            await ours.request("lease.renew", RUN)
        assert refusal.value.code == "invalid"
        assert (await ours.request("lease.renew", RUN)).ok is True


async def test_answers_to_nobody_and_pings_are_passed_over() -> None:
    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "res", "id": 99, "ok": True, "r": {}})
        await peer.say({"t": "ping"})
        await peer.say({"t": "abort", "id": 7})
        await peer.say({"t": "msg", "m": "something.new", "p": {}})
        await peer.answer({"ok": True})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        assert (await ours.request("lease.renew", RUN)).ok is True


async def test_what_is_not_json_is_never_sent() -> None:
    async def behaviour(peer: Core) -> None:
        assert (await peer.answer({"ok": True}))["m"] == "lease.renew"
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        with pytest.raises(ContractViolation):
            await ours.request("effect.outcome", OutcomeParams(run_id="r1", effect_id="e1", value=object()))
        assert (await ours.request("lease.renew", RUN)).ok is True


# --- Served requests ---------------------------------------------------------------------------------------------------


async def test_requests_of_both_ends_may_have_equal_ids() -> None:
    async def serve(method: str, params: JsonObject) -> JsonObject:
        return {"served": method, "was": params["n"]}

    heard: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        asked = await peer.hear()
        assert asked["id"] == 1
        await peer.say({"t": "req", "id": 1, "m": "workspace.read", "p": {"n": 5}})
        heard.append(await peer.hear())
        await peer.say({"t": "res", "id": 1, "ok": True, "r": {"ok": True}})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url, on_request=in_task(serve)) as ours:
        assert (await ours.request("lease.renew", RUN)).ok is True
    assert heard == [{"t": "res", "id": 1, "ok": True, "r": {"served": "workspace.read", "was": 5}}]


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (RuntimeRefusal("not_found", "no such file"), "not_found", "no such file"),
        (ContractViolation("Invalid workspace.read request: tool"), "invalid", "Invalid workspace.read request: tool"),
        (SandboxError("the worker is gone"), "internal", "the worker is gone"),  # its code is not one of the wire's
        (ZeroDivisionError("division by zero"), "internal", "ZeroDivisionError: division by zero"),
    ],
)
async def test_what_a_handler_raises_crosses_as_a_code_of_the_contract(fault: Exception, code: str, text: str) -> None:
    async def serve(method: str, params: JsonObject) -> JsonObject:
        raise fault

    answers: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "req", "id": 3, "m": "workspace.read", "p": {}})
        answers.append(await peer.hear())

    async with core(behaviour) as listener, channel(listener.url, on_request=in_task(serve)) as ours:
        await ours.wait_closed()
    assert answers == [{"t": "res", "id": 3, "ok": False, "e": {"code": code, "message": text}}]


async def test_an_unknown_request_is_refused_and_the_connection_stays() -> None:
    answers: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "req", "id": 1, "m": "workspace.dance", "p": {}})
        await peer.say({"t": "req", "id": 0, "m": "workspace.read", "p": {}})
        answers.extend([await peer.hear(), await peer.hear()])

    async with core(behaviour) as listener, channel(listener.url) as ours:
        await ours.wait_closed()
    assert [(answer["id"], answer["e"]["code"]) for answer in answers] == [(1, "invalid"), (0, "invalid")]
    assert answers[0]["e"]["message"] == "Unknown workspace.dance request"


async def test_an_abort_cancels_the_handler_which_still_answers() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(method: str, params: JsonObject) -> JsonObject:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return {}

    answers: list[JsonObject] = []

    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "req", "id": 1, "m": "workspace.exec", "p": {}})
        await begun.wait()
        await peer.say({"t": "abort", "id": 1})
        answers.append(await peer.hear())
        # The id is free again, and an abort at once, before the handler's first step, is answered too.
        await peer.say({"t": "req", "id": 1, "m": "workspace.exec", "p": {}})
        await peer.say({"t": "abort", "id": 1})
        answers.append(await peer.hear())

    async with core(behaviour) as listener, channel(listener.url, on_request=in_task(serve)) as ours:
        await ours.wait_closed()
    assert cancelled.is_set()
    assert [answer["e"]["code"] for answer in answers] == ["unavailable", "unavailable"]


async def test_the_end_of_the_connection_cancels_handlers() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(method: str, params: JsonObject) -> JsonObject:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "req", "id": 1, "m": "workspace.exec", "p": {}})
        await begun.wait()

    async with core(behaviour) as listener, channel(listener.url, on_request=in_task(serve)) as ours:
        await ours.wait_closed()
        await cancelled.wait()


# --- Giving up ---------------------------------------------------------------------------------------------------------


async def test_cancelling_the_caller_aborts_the_request() -> None:
    heard: list[JsonObject] = []
    waiting = asyncio.Event()

    async def behaviour(peer: Core) -> None:
        heard.append(await peer.hear())
        waiting.set()
        heard.append(await peer.hear())
        await peer.say(
            {"t": "res", "id": 1, "ok": False, "e": {"code": "unavailable", "message": "too late to matter"}}
        )
        await peer.answer({"ok": True})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url) as ours:
        lease = asyncio.create_task(ours.request("lease", Empty()))
        await waiting.wait()
        lease.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lease
        assert (await ours.request("lease.renew", RUN)).ok is True
    assert heard == [{"t": "req", "id": 1, "m": "lease", "p": {}}, {"t": "abort", "id": 1}]


# --- Messages ----------------------------------------------------------------------------------------------------------


async def test_messages_are_delivered_as_models_and_a_fault_in_taking_one_costs_nothing() -> None:
    taken: list[Wire] = []

    def take(method: str, params: Wire) -> None:
        taken.append(params)
        raise RuntimeError("a bug of the host")

    async def behaviour(peer: Core) -> None:
        await peer.say({"t": "msg", "m": "cancel", "p": {"runId": "r1", "reason": "deadline", "message": "50 min"}})
        await peer.say({"t": "msg", "m": "cancel", "p": {"runId": "r1", "reason": "unheard of"}})
        await peer.answer({"ok": True})
        await until_closed(peer)

    async with core(behaviour) as listener, channel(listener.url, on_message=take) as ours:
        assert (await ours.request("lease.renew", RUN)).ok is True
    assert taken == [Cancel(run_id="r1", reason="deadline", message="50 min")]


# --- The token ---------------------------------------------------------------------------------------------------------


async def test_the_host_token_is_in_no_log_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with core(until_closed) as listener, channel(listener.url):
        pass
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.server")]
    assert TOKEN not in "\n".join(ours)
