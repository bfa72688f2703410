"""What each bench has to reach: every budget, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Budgets:
    """A ``…_ratio`` is to what stands beside the row, measured in the same run; "floor" is `machine.spawn_bash`."""

    exec_paced_ratio: float = 0.6  # workspace.exec of `true`, one every 50 ms, p50 to the floor's p50
    exec_paced_p99_ratio: float = 1.5  # the same, p99 to the floor's p50
    exec_back_to_back_ratio: float = 1.2
    exec_cold_ratio: float = 1.6  # with no shell started ahead
    exec_burst_share: float = 0.6  # of the rate at which the machine can spawn bash at all; this or more
    file_tool_over_ms: float = 0.6  # read, write, edit of 10 KB over the bare system calls
    grep_ratio: float = 1.15  # to ripgrep alone, same flags and order
    glob_ratio: float = 1.5  # to `rg --files`
    output_ratio: float = 2.0  # 1 GB of output, to `cat >/dev/null` of it
    output_growth_mib: float = 16.0
    step_cpu_ms: float = 1.5  # our own CPU of a step of a turn, at 10 entries
    long_step_ratio: float = 1.3  # at 10 000 entries, beyond step_cpu_ms: to SHA-256 and one POST of the body
    frame_late_ms: float = 250.0  # pings and lease.renew, while 32 MiB come and go
    start_ratio: float = 1.8  # start to first lease, to python importing what it is made of
    first_turn_over_ms: float = 10.0  # the first turn over the second
    idle_mib: float = 60.0  # PSS of all processes
    run_mib: float = 2.0  # PSS a run in flight, at 10 entries
    release_ms: float = 50.0  # SIGTERM to lease.release, with no command in flight
    release_busy_ms: float = 400.0  # … with 64
    exit_ms: float = 1000.0  # SIGTERM to the exit
    herd_share: float = 0.2  # of 200 hosts' returns in any one second
    herd_seconds: float = 12.0  # until all are back


BUDGETS: Final = Budgets()
SLACK: Final = 1.5  # the short form fails on what is off by more than half: a machine that does other things too
