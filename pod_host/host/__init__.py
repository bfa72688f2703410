"""The life of the pod: network gate, join, setup, workspace requests, leases, shutdown. `main` is ``pod-host run``."""

from __future__ import annotations

import asyncio
import signal
import sys

from pod_host.errors import ConfigurationError, ConfinementMissing, NetworkGateError
from pod_host.settings import Settings

EXIT_NETWORK_GATE = 75
EXIT_CONFIGURATION = 78


def main(settings: Settings) -> int:
    """Run the host until SIGTERM or SIGINT. The exit code: 0, or 75 when the network gate never closed, or 78 when what the
    settings name cannot be used. (70 is the watchdog's own.)"""
    from pod_host.host.hardening import harden
    from pod_host.host.log import configure, get_log

    configure(settings.log_level, settings.log_format)
    harden()
    log = get_log()
    try:
        asyncio.run(_run(settings))
    except NetworkGateError as fault:
        log.error("gate.failed", reason=str(fault))
        return EXIT_NETWORK_GATE
    except ConfinementMissing as fault:
        log.error("confinement.missing", reason=str(fault))
        return EXIT_CONFIGURATION
    except ConfigurationError as fault:
        for line in fault.faults:
            print(f"pod-host: {line}", file=sys.stderr)
        return EXIT_CONFIGURATION
    return 0


async def _run(settings: Settings) -> None:
    """The loop's first steps: signals before anything that takes time."""
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
