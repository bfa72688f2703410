"""A model call's bytes: what any encoder would make of it, and the hash that core's rule gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.base import JsonObject
from pod_host.contract.canonical import canonical, canonical_array, effect_request_hash
from pod_host.turn.call_bytes import CallBytes
from pod_host.turn.identity import Identities
from tests.turn.double import Runtime, script
from tests.turn.json_values import objects

INTENT = Identities.of(Runtime(script()).start()).model(3, 2)


@given(st.lists(objects, max_size=4), st.lists(objects, max_size=2))
async def test_it_is_the_canonical_text_of_the_whole(prompt: list[JsonObject], tools: list[JsonObject]) -> None:
    made = CallBytes.of(
        INTENT, "ses\0_1", [canonical(item) for item in prompt], canonical_array(canonical(tool) for tool in tools)
    )
    call = {"executionId": "ses\0_1", "prompt": prompt, "tools": tools}
    invocation_id = INTENT.context.invocation_id
    assert made.body == canonical({"effectId": INTENT.effect_id, "invocationId": invocation_id, "call": call})
    assert bytes(made.call) == canonical(call)
    assert await made.request_hash(INTENT) == effect_request_hash({**INTENT.wire(), "input": call})


async def test_a_large_call_is_hashed_beside_the_loop_to_the_same_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CallBytes.of(INTENT, "ses_1", [b'{"a":1}', b'{"b":2},{"c":3}'], b"[]")
    there = await made.request_hash(INTENT)
    monkeypatch.setattr(limits, "LOOP_PIECE_BYTES", 10)
    assert await made.request_hash(INTENT) == there
