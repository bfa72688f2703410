"""The agent file: what ``pod-host dev --agent FILE`` runs, in YAML or JSON.

It stands for what a Runtime keeps of an Agent: its harness section (instructions, tools, skills, MCP servers, memory,
output schema, loop settings) and its runtime section (setup, environment, secrets' names, network, self-wake). Every
member but ``name`` may be left out. Paths are relative to the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.open_points import SetupFault, read_setup
from pod_host.dev.agent_schema import AgentDocument, AgentMembers, EnvironmentSecretMember, UsedAgent, mend
from pod_host.dev.skills import Skill, read_skill
from pod_host.errors import AgentFileError

FILE_BYTES: Final = 1024 * 1024  # an agent file is written by a person


@dataclass(frozen=True)
class EnvironmentSecret:
    """A secret that the egress proxy puts into ``header`` of every request to ``hosts`` (exact, or ``*.suffix``), after
    ``prefix``. Its value: ``value``, else the Runtime's variable ``from_env``, else the one of the secret's own name."""

    hosts: tuple[str, ...] = ()
    header: str = "Authorization"
    prefix: str = ""
    value: str | None = field(default=None, repr=False)
    from_env: str | None = None

    def binds(self, host: str) -> bool:
        return any(host.endswith(name[1:]) if name.startswith("*.") else host == name for name in self.hosts)


@dataclass(frozen=True)
class Agent:
    """One Agent. ``tools`` and ``mcp_servers`` are as the manifest has them, agents used as tools within; ``used_skills``: of
    those; ``memory`` is ``{access, instructions?}`` or None;
    ``setup`` is as a join answer carries it; ``environment_secrets`` by name: commands see a
    placeholder; one without hosts is nobody's here."""

    name: str
    harness_id: str = "pod-host"
    description: str | None = None
    instructions: str = ""
    tools: tuple[JsonObject, ...] = ()
    skills: Mapping[str, Skill] = field(default_factory=dict)
    used_skills: tuple[Skill, ...] = ()
    mcp_servers: tuple[JsonObject, ...] = ()
    setup: JsonObject | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_secrets: Mapping[str, EnvironmentSecret] = field(default_factory=dict)
    memory: JsonObject | None = None
    output_schema: JsonObject | None = None
    self_wake: bool = False
    network_allow: tuple[str, ...] = ()
    loop: Json = None
    model: JsonObject | None = None

    def manifest(self) -> JsonObject:
        """The loop manifest of a turn: flat, the name as its id (Harness API v5, section 3)."""
        manifest: JsonObject = {
            "id": self.name,
            "harness": {"id": self.harness_id},
            "instructions": self.instructions,
            "tools": list(self.tools),
            "skills": [skill.manifest() for skill in self.skills.values()],
            "mcpServers": list(self.mcp_servers),
        }
        optional = {"description": self.description, "outputSchema": self.output_schema, "model": self.model}
        return manifest | {name: value for name, value in optional.items() if value is not None}

    def files(self) -> dict[str, bytes]:
        """Every file that the manifest names, by ``sha256:<hex>``: what ``definition.file`` serves."""
        return {
            f"sha256:{hashlib.sha256(content).hexdigest()}": content
            for skill in (*self.skills.values(), *self.used_skills)
            for content in skill.files.values()
        }


DEFAULT_AGENT: Final = Agent(
    name="assistant",
    description="A small coding assistant",
    instructions=(
        "You are a coding assistant with a Linux workspace. Do what is asked with the tools you have, and look before "
        "you claim: run what you write, read what it prints, and mend what fails. Say in the end, shortly, what you did "
        "and what you saw."
    ),
)


def load_agent(path: Path) -> Agent:
    """Raises AgentFileError: one line with the file, the member and what would mend it."""
    try:
        document = AgentDocument.model_validate(_parse(path))
    except ValidationError as fault:
        where, problem = mend(fault)
        raise AgentFileError(f"{path}: {where}: {problem}" if where else f"{path}: {problem}") from None
    used = _UsedAgents(path, document.name)
    return Agent(
        name=document.name,
        harness_id=document.harness.id,
        description=document.description,
        instructions=document.instructions_text(),
        tools=used.tools(document, ""),
        skills=_skills(path, document, ""),
        used_skills=tuple(used.skills),
        mcp_servers=tuple(server.wire() for server in document.mcp_servers),
        setup=_setup(path, document.setup.wire()) if document.setup else None,
        environment=document.environment,
        environment_secrets=_secrets(document.environment_secrets),
        memory=document.memory_wire(),
        output_schema=document.output_schema,
        self_wake=document.self_wake,
        network_allow=tuple(document.network.allow) if document.network else (),
        loop=document.loop,
        model=document.model.wire() if document.model else None,
    )


def _skills(path: Path, members: AgentMembers, where: str) -> dict[str, Skill]:
    """By name. ``where``: the members' place in the file, with a dot at its end; empty for the whole."""
    skills: dict[str, Skill] = {}
    for index, folder in enumerate(members.skills):
        place = f"{path}: {where}skills[{index}]"
        skill = read_skill(path.parent / folder, place)
        if skill.name in skills:
            raise AgentFileError(f"{place}: a skill named {skill.name} is there already; rename one in its SKILL.md")
        skills[skill.name] = skill
    return skills


class _UsedAgents:
    """The agents used as tools, as the manifest defines them. ``skills``: of all that were read."""

    def __init__(self, path: Path, own_name: str) -> None:
        self.skills: list[Skill] = []
        self._path = path
        self._names = {own_name}

    def tools(self, members: AgentMembers, where: str) -> tuple[JsonObject, ...]:
        tools: list[JsonObject] = []
        for index, tool in enumerate(members.tools):
            tools.append(tool.wire())
            if tool.agent is not None:
                tools[-1]["agent"] = self._agent(tool.agent, tool.name, f"{where}tools[{index}].agent.")
        return tuple(tools)

    def _agent(self, agent: UsedAgent, tool: str, where: str) -> JsonObject:
        name = agent.name or tool
        if name in self._names:
            raise AgentFileError(f"{self._path}: {where}name: another agent has the name {name}; choose another")
        self._names.add(name)
        skills = _skills(self._path, agent, where)
        self.skills.extend(skills.values())
        return {
            **{member: value for member, value in agent.wire().items() if member != "name"},
            "id": name,
            "instructions": agent.instructions_text(),
            "tools": list(self.tools(agent, where)),
            "skills": [skill.manifest() for skill in skills.values()],
            "mcpServers": [server.wire() for server in agent.mcp_servers],
        }


# --- Reading the file ------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Plain YAML, but a member written twice is a fault and not silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Json, Json]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: Path) -> JsonObject:
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as fault:
        raise AgentFileError(f"{path}: cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError as fault:
        raise AgentFileError(f"{path}: byte {fault.start} is not UTF-8; save the file as UTF-8") from None
    if len(raw) > FILE_BYTES:
        raise AgentFileError(f"{path}: {len(raw)} bytes is too long for an agent file; at most {FILE_BYTES}")
    try:
        # YAML takes most JSON but not all of it: tabs as white space, for one.
        document = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else yaml.load(text, _Loader)
    except json.JSONDecodeError as fault:
        raise AgentFileError(f"{path}: line {fault.lineno}, column {fault.colno}: not JSON: {fault.msg}") from None
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise AgentFileError(f"{path}: {place}not YAML: {fault.problem or fault.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        language = "JSON" if path.suffix == ".json" else "YAML"
        raise AgentFileError(f"{path}: not {language}: {' '.join(str(fault).split())}") from None
    if not isinstance(document, dict):
        raise AgentFileError(f"{path}: an object with members such as name and instructions is needed")
    for where, problem in _not_json(document, ""):
        raise AgentFileError(f"{path}: {where}: {problem}")
    return document


def _once(members: list[tuple[str, Json]]) -> JsonObject:
    """An object of a JSON file: a member written twice is a fault there too."""
    names = [name for name, _ in members]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice")
    return dict(members)


def _not_json(value: Json, where: str) -> Iterator[tuple[str, str]]:
    """What YAML can say and JSON cannot: dates, sets, bytes, members that are no texts."""
    if isinstance(value, dict):
        for name, item in value.items():
            inner = f"{where}.{name}" if where else str(name)
            if not isinstance(name, str):
                yield inner, f"a member's name must be a text; write it in quotes: '{name}'"
            yield from _not_json(item, inner)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_json(item, f"{where}[{index}]")
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        yield where, f"{value} is no JSON number"
    elif not (value is None or isinstance(value, str | int | float | bool)):
        yield where, f"{type(value).__name__} is no JSON; write it in quotes: '{value}'"


def _secrets(members: Mapping[str, EnvironmentSecretMember]) -> dict[str, EnvironmentSecret]:
    return {
        name: EnvironmentSecret(
            hosts=tuple(member.hosts),
            header=member.header,
            prefix=_prefix(member) if member.hosts else "",
            value=member.value,
            from_env=member.from_env,
        )
        for name, member in members.items()
    }


def _prefix(member: EnvironmentSecretMember) -> str:
    if member.prefix is not None:
        return member.prefix
    return "Bearer " if member.header.lower() == "authorization" else ""  # what most services take


def _setup(path: Path, setup: JsonObject) -> JsonObject:
    """``setup`` as a join answer carries it: a file's ``from`` becomes its bytes."""
    files: list[JsonObject] = []
    for index, entry in enumerate(setup.get("files", [])):
        source = entry.pop("from", None)
        if source is not None:
            try:
                content = (path.parent / source).read_bytes()
            except OSError as fault:
                raise AgentFileError(f"{path}: setup.files[{index}].from: {source}: {fault.strerror}") from None
            entry["base64"] = base64.b64encode(content).decode("ascii")
        files.append(entry)
    answer: JsonObject = {"files": files, "commands": setup.get("commands", [])}
    for step in read_setup(answer):
        if isinstance(step, SetupFault):
            raise AgentFileError(f"{path}: {step.where}: {step.problem}")
    return answer
