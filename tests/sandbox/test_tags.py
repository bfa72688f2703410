"""Tags on processes: whose they are, under what limits, and that none can be forged."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pod_host.sandbox.tags import RLIMIT_LOCKS, NoRoomForTags, Pass, Sweep, Tagged, TagSpace, command_line, signal_seen

SPACE = TagSpace(2**60, 2**56, 12345, (2**64 - 1, 2**64 - 1))
_numbers = st.integers(1, SPACE.most_number)


@given(_numbers)
def test_a_tag_tells_its_number(number: int) -> None:
    assert SPACE.number(*SPACE.limits(number)) == number


@given(_numbers, _numbers, st.integers(0, 2**20), st.integers(0, 2**20))
def test_lowering_a_tag_gives_nobody_elses(own: int, other: int, less_rss: int, less_locks: int) -> None:
    assume(less_rss or less_locks)
    rss, locks = SPACE.limits(own)
    assert SPACE.number(rss - less_rss, locks - less_locks) is None
    other_rss, other_locks = SPACE.limits(other)
    assert own == other or other_rss > rss or other_locks > locks  # to forge it, one had to be raised


def test_another_realm_is_foreign_and_so_is_no_tag() -> None:
    other = TagSpace(SPACE.base, SPACE.width, SPACE.realm + 1, SPACE.untouched)
    assert SPACE.number(*other.limits(1)) is None
    assert SPACE.foreign(*other.limits(1))
    assert SPACE.foreign(*SPACE.untouched)
    rss, locks = SPACE.limits(1)
    assert not SPACE.foreign(rss - 1, locks)
    assert not SPACE.foreign(1, 1)


_NESTED = """
import resource, sys
sys.path.insert(0, {root!r})
from pod_host.sandbox.tags import RLIMIT_LOCKS, NoRoomForTags, TagSpace
resource.setrlimit(resource.RLIMIT_RSS, ({rss}, {rss}))
resource.setrlimit(RLIMIT_LOCKS, ({locks}, {locks}))
try:
    space = TagSpace.within_own_limits()
except NoRoomForTags:
    print("none")
else:
    for number in (1, space.most_number):
        rss, locks = space.limits(number)
        resource.setrlimit(resource.RLIMIT_RSS, (rss, rss)) if number == 1 else None
        assert rss <= {rss} and locks <= {locks} and space.number(rss, locks) == number
    print("room")
"""


@pytest.mark.parametrize(
    ("limits", "room"),
    [(SPACE.limits(7), "room"), ((2**40, 2**40), "room"), ((2**63 - 1, 2**25), "room"), ((1000, 1000), "none")],
)
def test_tags_fit_below_hard_limits_that_are_there_already(limits: tuple[int, int], room: str) -> None:
    """Inside another sandbox's command the limits are its tag."""
    script = _NESTED.format(root=sys.path[0] or ".", rss=limits[0], locks=limits[1])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{room}\n", "")


def test_our_own_limits_leave_room() -> None:
    space = TagSpace.within_own_limits()
    assert space.read(0) == (
        resource.getrlimit(resource.RLIMIT_RSS)[1] % 2**64,
        resource.getrlimit(RLIMIT_LOCKS)[1] % 2**64,
    )
    assert NoRoomForTags.__doc__


def test_a_sweep_wants_more_passes_where_processes_vanish() -> None:
    calm = Sweep()
    assert [calm.saw(1, False), calm.saw(0, False), calm.saw(0, False)] == [False, False, True]
    busy = Sweep()
    assert [busy.saw(0, True) for _ in range(8)] == [False] * 7 + [True]
    hit = Sweep()
    assert [hit.saw(0, False), hit.saw(1, False), hit.saw(0, False)] == [False, False, False]


def test_one_that_ended_since_it_was_found_has_vanished() -> None:
    """It may have forked before it ended: a tree that does so all the time is not over yet."""
    with subprocess.Popen(["sleep", "60"]) as process:
        seen = Pass([Tagged(process.pid, 1, SPACE.limits(1))], vanished=False)
        assert signal_seen(SPACE, seen, lambda number: number == 1, 0) == (1, False)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now, and ours to collect
        assert signal_seen(SPACE, seen, lambda number: number == 1, signal.SIGKILL) == (0, True)
        assert signal_seen(SPACE, seen, lambda number: number == 2, signal.SIGKILL) == (0, False)


def test_a_command_line_is_for_people() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "x" * 500], stdin=subprocess.PIPE) as process:
        while not (line := command_line(process.pid)).startswith(sys.executable):
            pass  # the descriptor that Popen waits for closes a moment before the kernel shows the new arguments
    assert line.endswith("-c input() " + "x" * (199 - line.index("xx")) + "…")
    assert len(line) == 200
    assert command_line(2**22 + 1) == ""
