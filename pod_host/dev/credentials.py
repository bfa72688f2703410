"""Values that the gates send for an agent and show to nobody: where the agent file says ``${NAME}``, a variable of the
Runtime's own environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pod_host.contract.base import Json, JsonObject
from pod_host.dev.agent import Agent
from pod_host.errors import PodHostError

REDACTED: Final = "[redacted]"
_NAMED: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class CredentialMissing(PodHostError):
    code = "credential_missing"


@dataclass
class Credentials:
    """Of one call. ``sent``: the values that were used."""

    environment: Mapping[str, str]
    sent: set[str] = field(default_factory=set)

    def value(self, name: str) -> str:
        """Raises CredentialMissing naming the variable."""
        value = self.environment.get(name)
        if not value:
            raise CredentialMissing(f"the variable {name} is not set where the Runtime runs")
        self.sent.add(value)
        return value

    def filled(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Headers with each ``${NAME}`` as its value. Raises CredentialMissing."""
        return {name: _NAMED.sub(lambda found: self.value(found[1]), text) for name, text in (headers or {}).items()}


def unset_variables(agent: Agent, environ: Mapping[str, str]) -> list[str]:
    """What the agent file names and ``environ`` lacks, a sentence each: a call that needs it would fail."""
    named = list(_named_by({"tools": agent.tools, "mcpServers": agent.mcp_servers}))
    for name, secret in agent.environment_secrets.items():
        if secret.hosts and secret.value is None:
            named.append((f"the secret {name}", secret.from_env or name))
    return [f"{what} needs the variable {name}, which is not set" for what, name in named if not environ.get(name)]


def _named_by(members: Mapping[str, Collection[JsonObject]]) -> Iterator[tuple[str, str]]:
    """Whose header needs a variable, and which."""
    for server in members["mcpServers"]:
        yield from ((f"the MCP server {server['name']}", name) for name in _variables(server))
    for tool in members["tools"]:
        http = tool.get("http") or {}
        yield from ((f"the tool {tool['name']}", name) for name in _variables(http))
        if "agent" in tool:
            yield from _named_by(tool["agent"])


def _variables(request: JsonObject) -> list[str]:
    credential = [request["credential"]] if request.get("credential") else []
    return credential + [name for text in (request.get("headers") or {}).values() for name in _NAMED.findall(text)]


def redacted(value: Json, secrets: Collection[str]) -> tuple[Json, int]:
    """``value`` without the secrets that its texts hold, and how many there were."""
    found = 0

    def clean(text: str) -> str:
        nonlocal found
        for secret in longest_first:
            if secret in text:
                found += text.count(secret)
                text = text.replace(secret, REDACTED)
        return text

    def walk(node: Json) -> Json:
        if isinstance(node, str):
            return clean(node)
        if isinstance(node, dict):
            return {clean(name): walk(item) for name, item in node.items()}
        if isinstance(node, list):
            return [walk(item) for item in node]
        return node

    longest_first = sorted(secrets, key=len, reverse=True)  # one may be a part of another
    return (walk(value), found) if secrets else (value, 0)
