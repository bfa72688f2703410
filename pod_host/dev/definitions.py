"""Versions of the Agent: what a session pins when it opens, so that a changed agent file changes no session under way."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical, sha256_hex
from pod_host.contract.open_points import SECRET_PLACEHOLDER
from pod_host.dev.agent import Agent
from pod_host.dev.database import Database, dump, load


@dataclass(frozen=True)
class Definition:
    """One version. ``environment``: what every command gets, secrets as their placeholder. ``memory``: ``{access,
    instructions?}`` or None."""

    version: int
    harness_id: str
    manifest: JsonObject
    environment: dict[str, str]
    network_allow: list[str]
    memory: JsonObject | None
    self_wake: bool
    loop: Json

    @property
    def manifest_hash(self) -> str:
        return f"sha256:{sha256_hex(canonical(self.manifest))}"

    @property
    def agent_id(self) -> str:
        return str(self.manifest["id"])

    def servers(self) -> dict[str, JsonObject]:
        """The MCP servers that the agent declares, by name."""
        return {server["name"]: server for server in self.manifest.get("mcpServers", [])}

    def http_tools(self) -> dict[str, JsonObject]:
        return {tool["name"]: tool for tool in self.manifest.get("tools", []) if "http" in tool}

    def skills(self) -> dict[str, JsonObject]:
        return {skill["name"]: skill for skill in self.manifest.get("skills", [])}

    def file_hashes(self) -> set[str]:
        return {name for skill in self.skills().values() for name in skill["files"].values()}


class Definitions:
    """Versions in the database, the files they name in ``state_dir/files``."""

    def __init__(self, db: Database, state_dir: Path) -> None:
        self._db = db
        self._files = state_dir / "files"
        self._read: dict[int, Definition] = {}

    def put(self, agent: Agent) -> Definition:
        """The version of ``agent`` as it is: an old one when nothing changed."""
        environment = dict(agent.environment) | dict.fromkeys(agent.environment_secrets, SECRET_PLACEHOLDER)
        body: JsonObject = {
            "harness_id": agent.harness_id,
            "manifest": agent.manifest(),
            "environment": environment,
            "network_allow": list(agent.network_allow),
            "memory": agent.memory,
            "self_wake": agent.self_wake,
            "loop": agent.loop,
        }
        self._files.mkdir(mode=0o700, exist_ok=True)
        for name, content in agent.files().items():
            self._keep(name, content)
        digest = sha256_hex(canonical(body))
        self._db.run("INSERT OR IGNORE INTO definitions (hash, body) VALUES (?, ?)", digest, dump(body))
        return self.get(self._db.value("SELECT version FROM definitions WHERE hash = ?", digest))

    def get(self, version: int) -> Definition:
        if version not in self._read:
            body = load(self._db.value("SELECT body FROM definitions WHERE version = ?", version))
            self._read[version] = Definition(version=version, **body)
        return self._read[version]

    def file(self, name: str) -> bytes | None:
        """The bytes of ``sha256:<hex>``, or None when the store has none."""
        path = self._files / name.removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", path.name):
            return None
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def _keep(self, name: str, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        path = self._files / digest
        if name == f"sha256:{digest}" and not path.exists():
            beside = path.with_name(f".{digest}.{secrets.token_hex(4)}")
            beside.write_bytes(content)
            os.replace(beside, path)
