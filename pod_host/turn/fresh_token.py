"""Calls at the gates with a token that they take (Harness API v5, sections 2 and 5).

A run token ends by the Runtime's clock, which may jump, and is refused by a Runtime whose keys changed. The next renewal
would bring another; a call that meets the old one's end asks for it at once, once, rather than fail its turn for it.
"""

from __future__ import annotations

from pod_host.client.room import Claim
from pod_host.contract.base import JsonObject
from pod_host.errors import ChannelClosed, GateRefusal, RuntimeRefusal
from pod_host.turn.ports import GatePort, RunPort

_REFUSED = 401


async def call(
    gates: GatePort,
    run: RunPort,
    path: str,
    body: bytes,
    *,
    key: str,
    traceparent: str | None,
    claim: Claim | None = None,
) -> JsonObject:
    """`GatePort.call`, for a run: with another token, when the gate refused its own and a renewal brought one."""

    async def ask() -> JsonObject:
        return await gates.call(path, body, key=key, token=lambda: run.token, traceparent=traceparent, claim=claim)

    try:
        return await ask()
    except GateRefusal as refusal:
        if refusal.status != _REFUSED or not await _renewed(run):
            raise
    return await ask()


async def _renewed(run: RunPort) -> bool:
    refused = run.token
    try:
        await run.renew()
    except (RuntimeRefusal, ChannelClosed):
        return False  # what becomes of the run is known to those who renew it in its time
    return run.token != refused
