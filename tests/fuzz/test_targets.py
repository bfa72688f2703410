"""Hostile data to every reader: the same draws at each run (tests/conftest.py), and all that was ever found to matter."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.source import Bytes, Drawn
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
SLOW = {
    "turns": 150,
    "join": 60,
    "channel": 100,
    "setup": 100,
}  # examples, of those that take a while: to shrink one would take minutes


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_hostile_breaks_a_reader(target: str) -> None:
    @settings(
        max_examples=SLOW.get(target, 200),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate] if target in SLOW else [Phase.generate, Phase.shrink],
    )
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        TARGETS[target](Drawn(data))

    attack()


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_breaks_no_reader(target: str) -> None:
    found = sorted((CORPUS / target).iterdir())
    assert found, "each target has a corpus"
    for path in found:
        TARGETS[target](Bytes(path.read_bytes()))
