"""A kernel that lacks a protection: the host says once what is exposed, or, where it is required, does not start."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attack.rig import Rig, as_each, attacked, pod_directories
from tests.host.core import Core

LACKS = ["landlock", "seccomp", "landlock,seccomp"]
LOST = {"landlock": {"files", "signals"}, "seccomp": {"limits"}}


def lost(lacking: str) -> set[str]:
    return set[str]().union(*(LOST[name] for name in lacking.split(",")))


async def events(uid: int, lacking: str, required: str) -> tuple[list[dict[str, Any]], int]:
    with pod_directories(uid) as base:
        async with Core() as core, Rig.run(core, base, uid, lacking=lacking, POD_HOST_CONFINEMENT=required) as rig:
            return rig.process.events.all, await rig.process.ended()


@as_each
@pytest.mark.parametrize("lacking", LACKS)
async def test_one_warning_says_all_that_is_exposed(uid: int, lacking: str) -> None:
    async with attacked(uid, lacking=lacking) as rig:
        started = await rig.process.event("worker.started")
        assert set(started["holds"]) == {"files", "signals", "limits"} - lost(lacking)
        (warning,) = [event for event in rig.process.events.all if event["event"] == "confinement.report"]
        words = {"files": str(rig.base / "join"), "signals": "signal", "limits": "limits, priorities and processors"}
        for name in lost(lacking):
            assert words[name] in warning["exposed"]
        assert warning["level"] == "warning"
        assert (await rig.bash("echo works all the same"))["exitCode"] == 0


@as_each
@pytest.mark.parametrize("lacking", LACKS)
async def test_what_is_required_and_missing_is_named_and_ends_the_start_with_78(uid: int, lacking: str) -> None:
    told, code = await events(uid, lacking, "require")
    assert code == 78
    (failed,) = [event for event in told if event["event"] == "worker.failed"]
    assert failed["reason"].startswith(f"Required of the kernel and missing: {', '.join(sorted(lost(lacking)))}.")
    assert not [event for event in told if event["event"] == "join.done"]


@as_each
async def test_what_is_missing_and_not_required_keeps_nobody_from_starting(uid: int) -> None:
    async with attacked(uid, lacking="seccomp", POD_HOST_CONFINEMENT="require:files,signals") as rig:
        assert (await rig.bash("echo up"))["stdout"] == "up\n"
    _, code = await events(uid, "landlock", "require:limits, signals")
    assert code == 78
