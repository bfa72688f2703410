"""What the embedded Runtime is told when it is made: where, which Agent, which model, which limits and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal

from pod_host.contract.turn_start import HarnessLimits
from pod_host.dev.agent import Agent
from pod_host.dev.models import Model

GIB: Final = 1024**3

Verdict = Literal["allow", "ask", "deny"]


@dataclass(frozen=True)
class ToolRule:
    """One rule of the tool policy. ``server`` and ``tool`` are globs over an MCP call's server and raw tool name, or
    ``tool`` alone over an HTTP tool's declared name; the model's own names never match (section 4)."""

    verdict: Verdict
    tool: str = "*"
    server: str | None = None

    def matches(self, server: str | None, tool: str) -> bool:
        if self.server is not None and (server is None or not fnmatchcase(server, self.server)):
            return False
        return fnmatchcase(tool, self.tool)


@dataclass(frozen=True)
class Times:
    """Seconds. The defaults are the Runtime's; tests shorten them."""

    lease: float = 30.0  # without a renewal: the run is lost
    token: float = 15 * 60.0  # host, egress and run tokens
    token_early: float = 5 * 60.0  # a run token with less left is minted anew by lease.renew
    ping: float = 30.0
    silence: float = 90.0
    offer: float = 60.0  # an offer that nobody took is withdrawn, said so, and made again
    advance: float = 50 * 60.0  # one segment; then cancel with reason deadline
    outcome: float = 30 * 60.0  # a gate keeps the outcome of a settled call
    egress_connect: float = 10.0
    egress_idle: float = 5 * 60.0
    mcp_idle: float = 15 * 60.0  # an MCP connection that nobody uses is closed
    stop: float = 1.0  # a clean stop waits so long for runs to be released, then for sockets to close


@dataclass(frozen=True)
class ArtifactLimits:
    """Bytes. One file, and everything of one Tenant and one Agent (here the same)."""

    file: int = 1 * GIB
    total: int = 8 * GIB


@dataclass(frozen=True)
class RuntimeConfig:
    """``state_dir`` holds everything that a restart continues from. A port of 0 is chosen by the system, once: the next
    start on the same ``state_dir`` takes it again when it is free."""

    state_dir: Path
    agent: Agent
    model: Model
    host: str = "127.0.0.1"
    harness_port: int = 0
    gates_port: int = 0
    egress_port: int = 0
    north_port: int = 0
    sandbox_id: str | None = None  # None: made once, and kept
    join_token_file: Path | None = None  # a file of somebody else's, such as a mounted Secret; None: a token of our own
    seeded: bool = False  # the disk starts from a disk version: there is no setup to run
    tool_policy: tuple[ToolRule, ...] = ()
    tool_attempts: int = 3  # toolAttempts: how often one MCP or HTTP call is delivered
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables that an agent's tools may name
    allowed_hosts: tuple[str, ...] = ()  # further ``name:port`` texts that the harness and gates listeners answer to
    egress_loopback: bool = False  # tests: the egress proxy may reach loopback, on any port
    # Tests: where a name leads, (address, port), in the resolver's stead; and a file with roots beside the public ones.
    egress_names: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    egress_upstream_ca: Path | None = None
    limits: HarnessLimits = field(default_factory=HarnessLimits)
    artifact_limits: ArtifactLimits = field(default_factory=ArtifactLimits)
    times: Times = field(default_factory=Times)

    def verdict(self, server: str | None, tool: str) -> Verdict:
        """What the tool policy says of an MCP or HTTP call: the first rule that matches, else ``allow``."""
        for rule in self.tool_policy:
            if rule.matches(server, tool):
                return rule.verdict
        return "allow"
