"""``python -m pod_host.dev``: the embedded Runtime alone. Prints one JSON line when it is ready; SIGTERM stops it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from pod_host.dev.agent import DEFAULT_AGENT, load_agent
from pod_host.dev.config import Times, ToolRule
from pod_host.dev.models import choose_model
from pod_host.dev.runtime import Runtime, RuntimeConfig
from pod_host.errors import ConfigurationError, PodHostError

EXIT_CONFIGURATION = 78


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pod_host.dev", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="kept; a restart goes on from it")
    parser.add_argument("--agent", type=Path, help="an agent file; without it, a small coding assistant")
    parser.add_argument("--host", default="127.0.0.1", help="where the harness, gates and egress ports are opened")
    for name in ("harness", "gates", "egress", "north"):
        parser.add_argument(f"--{name}-port", type=int, default=0, help="0: chosen, and kept for the next start")
    parser.add_argument("--allow-host", action="append", default=[], help="a further name:port that may address us")
    parser.add_argument("--sandbox-id", help="what the host must join as; without it, one is made and kept")
    parser.add_argument("--join-token-file", type=Path, help="a file with the join token, read at each join")
    parser.add_argument("--seeded", action="store_true", help="the disk starts from a disk version: no setup")
    parser.add_argument("--ask", action="append", default=[], metavar="GLOB", help="tools a person is asked about")
    parser.add_argument("--deny", action="append", default=[], metavar="GLOB", help="tools that are denied")
    parser.add_argument("--lease-seconds", type=float, default=Times.lease)
    parser.add_argument("--token-seconds", type=float, default=Times.token)
    parser.add_argument("--advance-seconds", type=float, default=Times.advance, help="the deadline of one segment")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> RuntimeConfig:
    rules = [("deny", glob) for glob in options.deny] + [("ask", glob) for glob in options.ask]
    return RuntimeConfig(
        state_dir=options.state_dir,
        agent=load_agent(options.agent) if options.agent else DEFAULT_AGENT,
        model=choose_model(os.environ),
        host=options.host,
        harness_port=options.harness_port,
        gates_port=options.gates_port,
        egress_port=options.egress_port,
        north_port=options.north_port,
        sandbox_id=options.sandbox_id,
        join_token_file=options.join_token_file,
        seeded=options.seeded,
        tool_policy=tuple(_rule(verdict, glob) for verdict, glob in rules),
        allowed_hosts=tuple(options.allow_host),
        times=Times(lease=options.lease_seconds, token=options.token_seconds, advance=options.advance_seconds),
    )


def _rule(verdict: str, glob: str) -> ToolRule:
    """``tool`` or ``server/tool``."""
    server, slash, tool = glob.rpartition("/")
    return ToolRule("deny" if verdict == "deny" else "ask", tool, server if slash else None)


async def run(config: RuntimeConfig) -> None:
    """Until SIGTERM or SIGINT."""
    runtime = Runtime(config)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await runtime.start()
    try:
        print(json.dumps(runtime.status()), flush=True)
        await stopped.wait()
    finally:
        await runtime.stop()


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(run(_config(_options(sys.argv[1:]))))
    except ConfigurationError as fault:
        print("\n".join(fault.faults), file=sys.stderr)
        return EXIT_CONFIGURATION
    except PodHostError as fault:
        print(fault, file=sys.stderr)
        return EXIT_CONFIGURATION
    return 0


if __name__ == "__main__":
    sys.exit(main())
