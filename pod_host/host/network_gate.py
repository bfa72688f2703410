"""The network gate: nothing runs and nothing joins until the pod's NetworkPolicy is seen in force.

A network plugin may put the policy in force seconds after the pod has started. The cluster's API server, which no
sandbox may reach, is the probe: it must have become unreachable. A failure to reach it proves that only while the Runtime
itself can be reached, for before the network is up nothing can be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pod_host import limits
from pod_host.errors import NetworkGateError
from pod_host.host.log import get_log
from pod_host.settings import Address

log = get_log()


@dataclass(frozen=True, slots=True)
class GateTimes:
    """Seconds: one attempt, the pause after one that proves nothing, how long a probe may be open. ``failures``: how many
    in a row prove the policy."""

    attempt: float = limits.GATE_ATTEMPT_SECONDS
    pause: float = limits.GATE_PAUSE_SECONDS
    deadline: float = limits.GATE_DEADLINE_SECONDS
    failures: int = limits.GATE_FAILURES


TIMES = GateTimes()


async def pass_network_gate(probes: Sequence[Address], runtime: Address, times: GateTimes = TIMES) -> None:
    """Returns when every probe is closed. Waits without end while the Runtime cannot be reached.

    Raises NetworkGateError when a probe has been open for ``times.deadline``.
    """
    started = time.monotonic()
    for probe in probes:
        await _wait_until_closed(probe, runtime, times)
    log.info(
        "gate.passed", probes=[str(probe) for probe in probes], waitedMs=round((time.monotonic() - started) * 1000)
    )


async def _wait_until_closed(probe: Address, runtime: Address, times: GateTimes) -> None:
    failures = openings = 0
    open_since: float | None = None
    while failures < times.failures:
        network_is_up = await connects(runtime, times.attempt)
        if await connects(probe, times.attempt):
            failures, openings = 0, openings + 1
            open_since = open_since or time.monotonic()
            if time.monotonic() - open_since >= times.deadline:
                raise NetworkGateError(
                    f"The pod's NetworkPolicy is not in force: {probe} still answered {openings} times"
                )
            log.warning("gate.open", probe=str(probe))
            await asyncio.sleep(times.pause)
        elif network_is_up:
            failures += 1
        else:
            failures, open_since = 0, None
            log.warning("gate.waiting", runtime=str(runtime), reason="the Runtime cannot be reached yet")
            await asyncio.sleep(times.pause)


async def connects(address: Address, seconds: float) -> bool:
    """Whether a TCP connection comes about in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, UnicodeError):  # TimeoutError is an OSError; UnicodeError: a host name that cannot be one
        return False
    writer.transport.abort()
    return True
