"""A run token that the gate refuses is exchanged at once, and the call is not lost for it (v5, sections 2 and 5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pod_host.client.room import Claim, Room
from pod_host.contract.base import JsonObject, Sent
from pod_host.contract.work import RenewResult, RunGrant
from pod_host.errors import ChannelClosed, GateRefusal, RuntimeRefusal
from pod_host.turn import fresh_token


class Gate:
    """It takes the token ``good``, and refuses every other with ``refusal``. ``asked``: the token of each call."""

    def __init__(self, refusal: GateRefusal) -> None:
        self.refusal = refusal
        self.asked: list[str] = []

    def claim(self) -> Claim:
        return Room(1).claim()

    async def call(self, path: str, body: bytes, *, key: str, token: Callable[[], str], **_: Any) -> JsonObject:
        self.asked.append(token())
        if token() != "good":
            raise self.refusal
        return {"path": path, "body": body.decode(), "key": key}

    async def cancel(self, path: str, *, key: str, token: Callable[[], str]) -> None:
        raise AssertionError("nothing is cancelled")


class Run:
    """``brings``: the token that a renewal brings, None for none; or what it raises."""

    grant = RunGrant(
        run_id="r", session_id="s", turn_id="t", epoch=1, token="old", token_expires_at=datetime(2030, 1, 1, tzinfo=UTC)
    )

    def __init__(self, token: str, brings: str | Exception | None) -> None:
        self.token = token
        self.renewals = 0
        self._brings = brings

    async def request(self, method: str, params: Sent) -> Any:
        raise AssertionError("nothing is asked")

    async def renew(self) -> RenewResult:
        self.renewals += 1
        if isinstance(self._brings, Exception):
            raise self._brings
        self.token = self._brings or self.token
        return RenewResult(ok=True)


EXPIRED = GateRefusal(401, "gate_unauthorized", "it has expired")


async def call(gate: Gate, run: Run) -> JsonObject:
    return await fresh_token.call(gate, run, "/p", b"{}", key="k", traceparent=None)


async def test_a_good_token_is_not_renewed() -> None:
    gate, run = Gate(EXPIRED), Run("good", None)
    assert await call(gate, run) == {"path": "/p", "body": "{}", "key": "k"}
    assert run.renewals == 0


async def test_a_refused_token_is_renewed_and_the_call_sent_again_with_the_new_one() -> None:
    gate, run = Gate(EXPIRED), Run("old", "good")
    assert await call(gate, run) == {"path": "/p", "body": "{}", "key": "k"}
    assert gate.asked == ["old", "good"]


async def test_a_new_token_that_is_refused_too_is_not_renewed_again() -> None:
    gate, run = Gate(EXPIRED), Run("old", "another")
    with pytest.raises(GateRefusal, match="expired"):
        await call(gate, run)
    assert (gate.asked, run.renewals) == (["old", "another"], 1)


@pytest.mark.parametrize("brings", [None, ChannelClosed("gone"), RuntimeRefusal("run_not_held", "over")])
async def test_without_a_new_token_the_refusal_stands(brings: Exception | None) -> None:
    gate, run = Gate(EXPIRED), Run("old", brings)
    with pytest.raises(GateRefusal, match="expired"):
        await call(gate, run)
    assert (gate.asked, run.renewals) == (["old"], 1)


async def test_any_other_refusal_is_no_reason_to_renew() -> None:
    gate, run = Gate(GateRefusal(409, "run_stale", "it is over")), Run("old", "good")
    with pytest.raises(GateRefusal, match="it is over"):
        await call(gate, run)
    assert run.renewals == 0
