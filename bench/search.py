"""``grep`` and ``glob`` over 10 000 files from core to core, beside ripgrep alone with the same flags and the same order.

``python -m bench.search``
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.budgets import BUDGETS
from bench.core import Connection
from bench.limits import spawned_inside
from bench.pod import Pod, running_pod
from bench.processes import cpu_seconds, pythons
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series
from pod_host.contract.base import JsonObject
from pod_host.sandbox.ripgrep import find_ripgrep

FILES = 10_000
IN_A_DIRECTORY = 50
LINES = 60
_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "omicron")
_COMMON = ("--no-config", "--no-ignore", "--hidden", "--sort=path", "--glob=!.git/")
_GREP = ("--no-heading", "--color=never", "--line-number", "--null", "--with-filename", "--crlf", "--max-count=201")


async def measure(short: bool) -> list[Row]:
    rounds = 10 if short else 60
    ripgrep = str(find_ripgrep() or "rg")
    async with running_pod() as pod:
        make_tree(pod.workspace / "tree")
        pod.own(pod.workspace / "tree")

        grepping = [*_COMMON, *_GREP, "--regexp=needle [0-9]+", "--", "tree"]

        def grep() -> None:
            _run([ripgrep, *grepping], pod.workspace)

        def files() -> None:
            _run([ripgrep, *_COMMON, "--files", "--null"], pod.workspace / "tree")

        return [
            await _beside(
                pod,
                rounds,
                "grep over 10 000 files",
                ("grep", {"pattern": "needle [0-9]+", "path": "tree"}),
                ("rg, same flags and order", grep),
                BUDGETS.grep_ratio,
            ),
            await _beside(
                pod,
                rounds,
                "glob over 10 000 files",
                ("glob", {"pattern": "**/*7.txt", "path": "tree"}),
                ("rg --files, same order", files),
                BUDGETS.glob_ratio,
            ),
            await _limit(pod, rounds, ripgrep, grepping),
        ]


async def _beside(
    pod: Pod,
    rounds: int,
    what: str,
    tool: tuple[str, JsonObject],
    other: tuple[str, Callable[[], None]],
    budget: float,
) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    own = pythons(pod.pid)
    for number in range(rounds + 2):
        if number == 2:  # the page cache is warm
            ours, theirs = [], []
            spent = cpu_seconds(own)
        ours.append(await _timed(pod.host, tool))
        began = time.perf_counter()
        other[1]()
        theirs.append(time.perf_counter() - began)
    cpu = (cpu_seconds(own) - spent) / rounds * 1e3
    series, beside = Series.of(ours, 1e3), Series.of(theirs, 1e3)
    check = Check(series.median / beside.median, budget)
    return Row.of(what, "ms", series, beside=(other[0], beside), cpu_ms=cpu, checks=[check])


async def _limit(pod: Pod, rounds: int, ripgrep: str, arguments: Sequence[str]) -> Row:
    """The kernel looks at each file that a confined ripgrep opens: what that takes of the time."""
    copy = pod.workspace / "rg"
    shutil.copy(ripgrep, copy)
    pod.own(copy)
    confined = Series.of(await spawned_inside(pod, [str(copy), *arguments], rounds), 1e3)
    bare = []
    for _ in range(rounds):
        began = time.perf_counter()
        _run([ripgrep, *arguments], pod.workspace)
        bare.append(time.perf_counter() - began)
    what = "limit: the same ripgrep, started by a command"
    return Row.of(what, "ms", confined, beside=("rg, same flags and order", Series.of(bare, 1e3)))


async def _timed(host: Connection, tool: tuple[str, JsonObject]) -> float:
    began = time.perf_counter()
    result = await host.use(*tool)
    took = time.perf_counter() - began
    assert result["output"].count("\n") > 100, result
    return took


def make_tree(root: Path) -> None:
    """The same each time: directories of text files, 200 of which hold a needle."""
    pick = random.Random(7)
    for number in range(FILES):
        directory = root / f"{number // IN_A_DIRECTORY:03}"
        if number % IN_A_DIRECTORY == 0:
            directory.mkdir(parents=True)
        lines = [" ".join(pick.choices(_WORDS, k=8)) for _ in range(LINES)]
        if number % IN_A_DIRECTORY == 25:
            lines[LINES // 2] += f" needle {number}"
        (directory / f"{number:05}.txt").write_text("\n".join(lines) + "\n")


def _run(command: Sequence[str], cwd: Path) -> None:
    """Its output read and thrown away, as a caller in Python would."""
    subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, check=True)


if __name__ == "__main__":
    alone("search", measure)
