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

    def agents(self) -> dict[str, JsonObject]:
        """The manifests of the session's agent and of all that are used as tools, by their ids."""
        found: dict[str, JsonObject] = {}
        waiting = [self.manifest]
        for manifest in waiting:
            found[manifest["id"]] = manifest
            waiting.extend(tool["agent"] for tool in manifest.get("tools", []) if "agent" in tool)
        return found

    def servers(self, agent_id: str | None = None) -> dict[str, JsonObject]:
        """The MCP servers that an agent declares, by name; those of agents used as tools with its ``agentId``. None: the
        session's own, here and below."""
        of = {} if agent_id in (None, self.agent_id) else {"agentId": agent_id}
        return {server["name"]: server | of for server in self._agent(agent_id).get("mcpServers", [])}

    def http_tools(self, agent_id: str | None = None) -> dict[str, JsonObject]:
        return {tool["name"]: tool for tool in self._agent(agent_id).get("tools", []) if "http" in tool}

    def skill_names(self) -> set[str]:
        """Of all agents."""
        return {skill["name"] for skill in self._skills()}

    def file_hashes(self) -> set[str]:
        return {name for skill in self._skills() for name in skill["files"].values()}

    def _agent(self, agent_id: str | None) -> JsonObject:
        return self.agents().get(agent_id or self.agent_id, {})

    def _skills(self) -> list[JsonObject]:
        return [skill for manifest in self.agents().values() for skill in manifest.get("skills", [])]


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
