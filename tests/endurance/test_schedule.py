"""A seed is enough to play a run again."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.endurance.model import read_plan
from tests.endurance.plans import Planner
from tests.endurance.schedule import WEIGHTS, Size, chapter


def test_a_seed_gives_the_same_faults_and_another_seed_others() -> None:
    size = Size(chapters=1, faults=30)
    assert chapter(7, 2, size) == chapter(7, 2, size)
    assert len({str(chapter(seed, number, size)) for seed in range(5) for number in range(5)}) == 25


def test_every_kind_of_fault_comes_up() -> None:
    faults = [fault for number in range(40) for fault in chapter(1, number, Size(chapters=1))]
    assert {fault.kind for fault in faults} == set(WEIGHTS)


def test_named_kinds_come_alone() -> None:
    faults = chapter(1, 0, Size(chapters=1, faults=30, kinds=("wire.cut", "disk.full")))
    assert {fault.kind for fault in faults} == {"wire.cut", "disk.full"}


def test_a_seed_gives_the_same_plans_which_the_model_reads_from_the_prompt() -> None:
    planner = Planner(Path("/ledger"), Path("/workspace"))
    plan = planner.turn(Random("one"), "p0-1")
    assert plan == planner.turn(Random("one"), "p0-1")
    said = {"kind": "message", "role": "assistant", "content": [{"type": "text", "text": "…"}]}
    asked = {"kind": "message", "role": "user", "content": [{"type": "text", "text": plan.message}]}
    earlier = {**asked, "content": [{"type": "text", "text": planner.turn(Random("two"), "p0-0").message}]}
    read, done = read_plan([earlier, said, said, asked, said])
    assert (read["turn"], done) == ("p0-1", 1)
    assert [[call["key"] for call in step] for step in read["steps"]] == [
        [call.key for call in step] for step in plan.steps
    ]
