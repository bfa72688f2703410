"""The short form: two fixed seeds, with all that a run may have (a user of its own, a relay, other clocks) and as root with
none of it, and by name what needs root.

Catches whatever breaks "journaled before it runs, once, and nothing is left": lost acknowledgements, second runs, answers
that go astray, processes and descriptors that outlive what they were for. The long form: ``python -m tests.endurance``.
"""

from __future__ import annotations

import pytest

from tests.endurance.__main__ import place_of
from tests.endurance.pod import program_for
from tests.endurance.report import Report
from tests.endurance.run import run
from tests.endurance.schedule import Size

pytestmark = pytest.mark.timeout(400)  # half a minute each, and several times that on a busy machine


async def endured(seed: int, size: Size) -> Report:
    place = place_of(seed)
    if program_for(place.uid) is None:
        pytest.skip(f"no interpreter that uid {place.uid} can run")
    return await run(seed, size, place)


@pytest.mark.parametrize("seed", [6, 7])
async def test_whatever_happens_what_was_acknowledged_is_there_once_and_nothing_is_left(seed: int) -> None:
    report = await endured(seed, Size(chapters=1, faults=10))
    assert report.effects + report.totals["exec completed"] > 100


@pytest.mark.parametrize("kind", ["wire.unplugged", "disk.full"])
async def test_likewise_where_it_takes_root_to_break_things(kind: str) -> None:
    missing = place_of(4).without.get(kind)
    if missing:
        pytest.skip(f"{kind}: {missing}")
    report = await endured(4, Size(chapters=1, faults=2, kinds=(kind,)))
    assert report.faults[kind] == 2
