"""The embedded Runtime as a process of its own, with the planned model: it may be killed at any time, and goes on from its
state directory. Prints one JSON line when it is ready; SIGTERM stops it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

from tests.endurance.clock import follow

LEASE_SECONDS = 4.0
TOKEN_SECONDS = 20.0


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("clock", "state-dir", "join-token-file", "order-url", "library-url"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--harness-port", type=int, default=0)
    parser.add_argument("--allow-host", action="append", default=[])
    options = parser.parse_args()
    follow(options.clock, "jwt.api_jwt")
    from pod_host.dev.__main__ import run  # after the clock: what it imports reads it

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(run(_config(options)))


def _config(options: argparse.Namespace) -> Any:
    from pod_host.dev.agent import Agent
    from pod_host.dev.config import RuntimeConfig, Times, ToolRule
    from tests.endurance.model import PlannedModel

    order: dict[str, Any] = {
        "name": "order",
        "description": "Orders a thing.",
        "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        "http": {"url": options.order_url, "timeoutMs": 20_000},
    }
    return RuntimeConfig(
        state_dir=Path(options.state_dir),
        agent=Agent(
            name="endurance",
            tools=(order, {**order, "name": "careful_order"}),
            mcp_servers=({"name": "library", "url": options.library_url},),
        ),
        model=PlannedModel(),
        join_token_file=Path(options.join_token_file),
        tool_policy=(ToolRule("ask", "careful_order"),),
        allowed_hosts=tuple(options.allow_host),
        times=Times(
            lease=LEASE_SECONDS, token=TOKEN_SECONDS, ping=2.0, silence=6.0, advance=60.0, mcp_idle=2.0, outcome=30.0
        ),
    )


if __name__ == "__main__":
    main()
