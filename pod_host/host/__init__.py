"""The life of the pod: network gate, join, setup, workspace requests, leases, shutdown. `main` is ``pod-host run``."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from pod_host.errors import ConfigurationError, NetworkGateError, SandboxError
from pod_host.host import hardening, log, watchdog
from pod_host.host.threads import start_threads
from pod_host.sandbox.launch import launch
from pod_host.settings import Settings

if TYPE_CHECKING:
    from pod_host.host.life import Host

EXIT_NETWORK_GATE = 75
EXIT_CONFIGURATION = 78


def main(settings: Settings) -> int:
    """Run the host until SIGTERM or SIGINT. The exit code: 0; 75 when the network gate never closed; 78 when what the
    settings name cannot be used, the sandbox among it. (70 is the watchdog's own.)"""
    environ = dict(os.environ)
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # none shall read for us; no command sees this
    hardening.harden()
    log.configure(settings.log_level, settings.log_format)
    for line in settings.misspelt:
        log.get_log().warning("settings.misspelt", reason=line)
    try:
        worker = launch()
    except OSError as fault:
        log.get_log().error("worker.failed", reason=f"its process could not be started: {fault.strerror}")
        return EXIT_CONFIGURATION
    try:
        from pod_host.client import runtime_tls
        from pod_host.host.life import Host  # here, where a signal still ends the process at once: this takes a while

        gc.freeze()
        gc.enable()  # off since the process began: nothing of what is imported is ever garbage
        tls = runtime_tls(settings.runtime_ca) if settings.speaks_tls or settings.runtime_ca else None
        asyncio.run(_run(settings, lambda: Host(settings, environ, tls, worker)))
    except NetworkGateError as fault:
        log.get_log().error("gate.failed", reason=str(fault))
        return EXIT_NETWORK_GATE
    except SandboxError as fault:
        log.get_log().error("worker.failed", reason=str(fault))
        return EXIT_CONFIGURATION
    except ConfigurationError as fault:
        for line in fault.faults:
            print(f"pod-host: {line}", file=sys.stderr)
        return EXIT_CONFIGURATION
    finally:
        worker.end()
        log.finish()
    return 0


async def _run(settings: Settings, host: Callable[[], Host]) -> None:
    """Signals first: from here on the first one is a shutdown in order, and the next ones change nothing."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    told = False
    departure = watchdog.Departure()

    def shut_down(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            departure.leave_after(settings.drain_seconds, 0)
            loop.call_soon_threadsafe(stopping.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not by the loop: its handlers end with it, and a second signal would then kill us on the way out.
        signal.signal(number, shut_down)
    guard = watchdog.Watchdog()
    guard.start(loop)
    loop.set_default_executor(start_threads())
    try:
        await host().run(stopping)
    finally:
        guard.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the interpreter takes handlers away before it ends, and leaves this
