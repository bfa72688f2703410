"""A manifest's ``tools`` and ``mcpServers`` (Harness API v5, section 3), each a list, or an object by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pod_host.contract.base import Json, JsonObject

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def declared_tools(manifest: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Each with its name, which may be none that can be used."""
    return ((str(tool.get("name")), tool) for tool in _named(manifest.get("tools")))


def declared_servers(manifest: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Those that have a name."""
    for server in _named(manifest.get("mcpServers")):
        if isinstance(server.get("name"), str) and server["name"]:
            yield server["name"], server


def _named(entries: Json) -> Iterator[JsonObject]:
    if isinstance(entries, dict):
        entries = [{"name": name, **entry} for name, entry in entries.items() if isinstance(entry, dict)]
    return (entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else iter(())
