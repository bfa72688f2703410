"""The system text: the agent's own instructions, then what holds for its sandbox. Each sentence is a promise to the model,
and the same turn gives the same text, byte for byte: it is part of every model call's hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.open_points import SECRET_PLACEHOLDER
from pod_host.contract.turn_start import SessionSandbox, TurnStart


def system_text(
    start: TurnStart,
    *,
    workspace: str | None,
    notes: Sequence[str],
    sections: Iterable[str] = (),
    plain_http: bool = False,
) -> str:
    """Blocks with a blank line between; empty when there is nothing to say.

    ``workspace``: where commands start, None when no sandbox tools are offered. ``sections``: of the turn's other tools
    and of its output, in order. ``notes``: the host's, after all else. ``plain_http``: of the sandbox, see `SandboxPort`.
    """
    blocks = instructions(start.manifest)
    if workspace is not None:
        blocks.append(_sandbox(workspace, start.routing.sandbox or SessionSandbox(), plain_http))
    blocks.extend([*sections, *notes])
    return "\n\n".join(block.strip() for block in blocks if block.strip())


def instructions(manifest: JsonObject) -> list[str]:
    """The manifest's ``instructions``: a text, or several."""
    value = manifest.get("instructions")
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _sandbox(workspace: str, sandbox: SessionSandbox, plain_http: bool) -> str:
    lines = [
        "# Sandbox",
        f"- Commands and relative paths start in {workspace}. Files there stay for later turns.",
        f"- {_network(sandbox.spec or {}, plain_http)}",
        "- Long output is cut in its middle, and says how many characters are missing. bash then names a file with the"
        " whole of it (stdoutFile, stderrFile): read or grep that file.",
        "- grep takes ripgrep's regular expressions, without look-around and backreferences. glob takes *, ?, ** across"
        " directories, {a,b} and [a-z].",
    ]
    secrets = sorted(name for name, value in sandbox.environment.items() if value == SECRET_PLACEHOLDER)
    if secrets:
        lines.append(
            f"- {', '.join(secrets)}: in commands each holds {SECRET_PLACEHOLDER}, which stands for a secret. Send it as"
            " it is: the proxy puts the secret in its place, for the hosts that it is meant for."
        )
    return "\n".join(lines)


def _network(spec: JsonObject, plain_http: bool) -> str:
    """What ``routing.sandbox.spec.network`` says: ``{preset?, allow?: [host or *.suffix]}``."""
    network: Json = spec.get("network")
    allow = network.get("allow") if isinstance(network, dict) else None
    preset = network.get("preset") if isinstance(network, dict) else None
    hosts = [host for host in allow if isinstance(host, str)] if isinstance(allow, list) else []
    by_proxy = "through the proxy that their environment names"
    if not plain_http:
        by_proxy += ", by https (http:// URLs are refused)"
    if hosts:
        return f"Network: commands reach these hosts, {by_proxy}: {', '.join(hosts)}. No other host is reached."
    if isinstance(allow, list) or preset == "none":
        return "Network: commands reach no host."
    return f"Network: commands reach what a policy allows, {by_proxy}. A refused connection means: not allowed."
