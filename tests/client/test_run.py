"""A leased run: its token rotates, and once it is over nothing but a release is sent for it."""

from __future__ import annotations

import pytest

from pod_host.client import Run
from pod_host.contract.base import JsonObject
from pod_host.contract.effects import OutcomeParams
from pod_host.contract.output import TurnOutput
from pod_host.contract.work import RunGrant
from pod_host.errors import ChannelClosed, RuntimeRefusal
from tests.client.peers import Core, channel, core, until_closed

GRANT = RunGrant(run_id="r1", session_id="s1", turn_id="t1", epoch=3, token="first")
OUTCOME = OutcomeParams(run_id="r1", effect_id="e1", value=1)


class Script:
    """A peer that answers each request in turn, and keeps what it was asked."""

    def __init__(self, *answers: JsonObject) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, peer: Core) -> None:
        for answer in self.answers:
            asked = await peer.hear()
            self.asked.append(asked["m"])
            assert asked["p"]["runId"] == "r1"
            said = {"ok": False, "e": answer} if "code" in answer else {"ok": True, "r": answer}
            await peer.say({"t": "res", "id": asked["id"], **said})
        await until_closed(peer)


async def test_a_renewal_changes_the_token_when_one_comes() -> None:
    script = Script(
        {"ok": True}, {"ok": True, "token": "second", "tokenExpiresAt": "2026-01-01T00:00:00Z"}, {"ok": True}
    )
    async with core(script) as listener, channel(listener.url) as ours:
        run = Run(ours, GRANT)
        seen = []
        for _ in range(3):
            assert (await run.renew()).ok is True
            seen.append(run.token)
    assert seen == ["first", "second", "second"]


def test_a_grant_without_a_token_gives_an_empty_one() -> None:
    grant = RunGrant(run_id="r1", session_id="s1", turn_id="t1", epoch=3)
    assert Run(None, grant).token == ""  # type: ignore[arg-type]


async def test_a_run_that_renews_as_over_sends_nothing_but_its_release() -> None:
    script = Script({"ok": False}, {})
    async with core(script) as listener, channel(listener.url) as ours:
        run = Run(ours, GRANT)
        assert (await run.renew()).ok is False
        assert run.over
        with pytest.raises(RuntimeRefusal) as refusal:
            await run.request("effect.outcome", OUTCOME)
        assert refusal.value.code == "run_not_held"
        await run.release("ownership.lost")
        await run.release("ownership.lost")
    assert script.asked == ["lease.renew", "lease.release"]


async def test_a_run_that_the_runtime_does_not_hold_is_not_released() -> None:
    script = Script({"code": "run_not_held", "message": "gone"})
    async with core(script) as listener, channel(listener.url) as ours:
        run = Run(ours, GRANT)
        for _ in range(2):
            with pytest.raises(RuntimeRefusal, match="run_not_held"):
                await run.request("effect.outcome", OUTCOME)
        await run.release("shutdown")
    assert script.asked == ["effect.outcome"]


@pytest.mark.parametrize(
    "code", ["turn_cancelled", "effect_drift", "invalid", "unavailable", "internal", "limit_exceeded"]
)
async def test_any_other_refusal_leaves_the_run_alive(code: str) -> None:
    script = Script({"code": code, "message": "no"}, {"status": "completed"})
    async with core(script) as listener, channel(listener.url) as ours:
        run = Run(ours, GRANT)
        with pytest.raises(RuntimeRefusal, match=code):
            await run.request("effect.outcome", OUTCOME)
        assert (await run.request("effect.outcome", OUTCOME)).status == "completed"
        assert not run.over


async def test_an_output_that_was_taken_ends_the_run() -> None:
    script = Script({"cursor": 9})
    async with core(script) as listener, channel(listener.url) as ours:
        run = Run(ours, GRANT)
        done = TurnOutput(run_id="r1", status="completed", output="done", state={"v": 1})
        assert (await run.request("turn.completed", done)).cursor == 9
        assert run.over
        await run.release("shutdown")
    assert script.asked == ["turn.completed"]


async def test_a_release_never_raises() -> None:
    script = Script({"code": "internal", "message": "oops"})
    async with core(script) as listener, channel(listener.url) as ours:
        await Run(ours, GRANT).release("shutdown")
        await ours.close("harness stopped")
        run = Run(ours, GRANT)
        with pytest.raises(ChannelClosed, match="harness stopped"):
            await run.renew()
        await run.release("connection.lost")
    assert script.asked == ["lease.release"]
