"""The names of a segment's effects."""

from __future__ import annotations

from pod_host.turn.identity import Identities
from tests.turn.double import Runtime, script


def test_an_agent_without_a_manifest_id_has_its_own() -> None:
    runtime = Runtime(script(), manifest={"instructions": ""})
    assert Identities.of(runtime.start()).agent_id == "coder"
    assert Identities.of(runtime.start(agent=None)).agent_id == "agent"


def test_another_attempt_is_another_effect_and_another_segment_too() -> None:
    runtime = Runtime(script())
    ids = Identities.of(runtime.start())
    assert [ids.model(7, attempt).effect_id for attempt in (1, 2)] == [
        "turn_1:0:model:step-7",
        "turn_1:0:model:step-7~2",
    ]
    runtime.segment = 1
    assert Identities.of(runtime.start()).model(7, 1).effect_id == "turn_1:1:model:step-7"
