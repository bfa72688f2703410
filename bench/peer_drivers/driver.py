"""The loop of a peer's driver, run by the peers' own interpreter: a line ``OPERATION COUNT`` on stdin, a line with a JSON
list of seconds on stdout. The first line out lists the operations."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

Operations = Mapping[str, Callable[[int], Awaitable[None]]]
"""Each is called with the number of the call."""


async def serve(operations: Operations) -> None:
    print(json.dumps(list(operations)), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, count = line.split()
        took = []
        for number in range(int(count)):
            began = time.perf_counter()
            await operations[name](number)
            took.append(time.perf_counter() - began)
        print(json.dumps(took), flush=True)
