"""Every reader of what comes from outside, as a function of a `Source`: it fails where a property does not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.fuzz.source import Source
from tests.fuzz.targets import answers, channel, frames, join, logs, setup, tools, turn_start, turns, workspace

TARGETS: Final[Mapping[str, Callable[[Source], None]]] = {
    "answers": answers.run,
    "channel": channel.run,
    "frames": frames.run,
    "join": join.run,
    "logs": logs.run,
    "setup": setup.run,
    "tools": tools.run,
    "turn_start": turn_start.run,
    "turns": turns.run,
    "workspace": workspace.run,
}

READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "answers": ("turn/candidates.py", "turn/mcp_results.py", "client/gates.py", "client/http.py"),
    "channel": ("client/channel.py", "client/outbox.py", "client/serving.py"),
    "frames": ("contract/rpc.py", "contract/frames.py", "contract/base.py", "contract/encoding.py"),
    "join": ("client/join.py", "client/http.py", "contract/hosting.py"),
    "logs": ("host/log.py",),
    "setup": ("host/setup.py", "host/setup_record.py", "contract/open_points.py", "sandbox/worker/files.py"),
    "tools": ("sandbox/tools",),
    "turn_start": ("contract/turn_start.py", "contract/base.py"),
    "turns": ("turn",),
    "workspace": ("host/workspace.py", "host/claims.py", "contract/workspace.py"),
}
"""The modules, or packages, of pod_host that a target is meant to reach: those whose coverage counts. (What reads a
workspace call lies among what reads a setup, and counts there.)"""
