"""The host's threads for work that waits. All of them start before the worker does: commands are kept from the threads that
are there by then, by their numbers, and one that came later could be slowed by any command."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

from pod_host.limits import HOST_THREADS


def start_threads() -> ThreadPoolExecutor:
    """An executor whose threads all run, and that starts no other."""
    executor = ThreadPoolExecutor(HOST_THREADS, thread_name_prefix="host")
    everyone = threading.Barrier(
        HOST_THREADS
    )  # a thread that is idle would be given the next work, and none be started
    wait([executor.submit(everyone.wait) for _ in range(HOST_THREADS)])
    return executor
