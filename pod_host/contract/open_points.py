"""Every shape that v5's text leaves open, in one place: what we send, what we accept, what we try next.

The exact schema of v5 is not at hand. So we send the least, accept every reasonable form, and fall back by a ladder where
a refusal tells us that a form is wrong. When the schema is known, this file alone changes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from pod_host.contract.base import Id, Json, JsonObject, first_fault
from pod_host.contract.model_call import ModelChoice
from pod_host.contract.workspace import TOOLS_OF, WorkspaceCall
from pod_host.errors import ContractViolation

_ID: TypeAdapter[str] = TypeAdapter(Id)

# --- hello: the type of features.workspace (section 2) -----------------------------------------------------------------

FEATURE_FORMS: tuple[JsonObject, ...] = ({"workspace": {"backends": ["local"]}}, {"workspace": True}, {})
"""Tried in this order, each on a new connection, while ``hello`` is refused as ``invalid``. The last serves turns alone."""

# --- environment_secret: what a command sees in its place (section 3) ---------------------------------------------------

SECRET_PLACEHOLDER = "nylorun_managed"


# --- memory.index: a text or lines (section 3) --------------------------------------------------------------------------


def memory_index(value: Json) -> str:
    """``memory.index`` as one text, a line per memory."""
    if isinstance(value, list):
        return "\n".join(str(line) for line in value)
    return value if isinstance(value, str) else ""


# --- schedule_wake: how long ``in`` is (section 4) -----------------------------------------------------------------------

WAKE_DELAY = re.compile(r"\d{1,9}(?:\.\d{1,6})?\s*[smhd]")
"""A number and a unit, such as ``90s`` or ``1.5h``: the form that we tell the model of, and send."""


# --- http-calls: how the body names the tool (section 5) ----------------------------------------------------------------


def http_call_bodies(
    tool: str, effect_id: str, turn_id: str, arguments: Json, agent_id: str | None = None
) -> tuple[JsonObject, ...]:
    """Bodies of ``http-calls``, likeliest first: the next is tried after ``400 invalid_request``. ``agent_id``: of the agent
    used as a tool that declares the tool."""
    agent = {} if agent_id is None else {"agentId": agent_id}
    named = {"tool": {**agent, "toolName": tool}, "effectId": effect_id, "input": arguments}
    return (named, {**named, "turnId": turn_id}, {**named, "tool": {**agent, "tool": tool}})


# --- tools[].agent: how a manifest defines an agent used as a tool (section 3) --------------------------------------------

_DEFINES = ("instructions", "tools", "skills", "mcpServers")
_MEMBER_KINDS: Mapping[str, tuple[type, ...]] = {
    "instructions": (str, list),
    "tools": (list, dict),
    "skills": (list, dict),
    "mcpServers": (list, dict),
    "outputSchema": (dict,),
    "model": (str, dict),
}


@dataclass(frozen=True)
class UsedDefinition:
    """``manifest``: the agent's own, flat as a turn's. ``model``: of its calls, when it names one."""

    id: str
    manifest: JsonObject
    model: ModelChoice | None


def used_definition(tool: str, agent: Json, manifests: Sequence[JsonObject]) -> UsedDefinition:
    """The agent of a manifest's ``tool``: a definition, in itself or within ``harness`` or ``manifest``; or its name, a text
    or an object with ``name``, ``id`` or ``ref``, for one of the ``agents`` of ``manifests``. Raises ContractViolation."""
    named = agent if isinstance(agent, str) else None
    if isinstance(agent, Mapping) and not _defines(agent):
        ref = _first(agent, "ref", "name", "id")
        named = ref if isinstance(ref, str) else None
    if named is not None:
        agent = next((found for manifest in manifests if (found := _named_agent(manifest, named)) is not None), None)
        if agent is None:
            raise ContractViolation(f"no agent {named} is defined")
    definition = _defines(agent) if isinstance(agent, Mapping) else None
    if definition is None:
        raise ContractViolation(f"its agent is not defined by {', '.join(_DEFINES)}")
    for member, kinds in _MEMBER_KINDS.items():
        if definition.get(member) is not None and not isinstance(definition[member], kinds):
            raise ContractViolation(f"its agent's {member} is {_kind(definition[member])}")
    own = _first(agent, "id", "name") or _first(definition, "id", "name")
    model = _model_choice(definition.get("model"))
    return UsedDefinition(own if isinstance(own, str) else named or tool, dict(definition), model)


def _model_choice(model: Json) -> ModelChoice | None:
    """A text is the model's id."""
    if model is None:
        return None
    given = {"id": model} if isinstance(model, str) else model
    known = {name: given[name] for name in ("id", "controls", "config") if given.get(name) is not None}
    if not known:
        raise ContractViolation("its agent's model has no id, controls or config")
    return ModelChoice.read(known, "its agent's model")


def _defines(agent: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """What of ``agent`` is a flat manifest."""
    for part in (agent, agent.get("harness"), agent.get("manifest")):
        if isinstance(part, Mapping) and any(part.get(member) is not None for member in _DEFINES):
            return part
    return None


def _named_agent(manifest: JsonObject, name: str) -> Json:
    for part in (manifest, _object(manifest.get("harness"))):
        agents = part.get("agents")
        if isinstance(agents, Mapping) and name in agents:
            return {"id": name, **_object(agents[name])}
        for entry in agents if isinstance(agents, list) else ():
            if isinstance(entry, Mapping) and name in (entry.get("id"), entry.get("name")):
                return entry
    return None


# --- session.mcp: the snapshot's members (section 3) ---------------------------------------------------------------------


def mcp_snapshots(servers: list[JsonObject], manifest_hash: str) -> tuple[JsonObject, ...]:
    """Snapshots of version 2, likeliest first: the next is tried after ``invalid``."""
    plain: JsonObject = {"snapshotSchemaVersion": 2, "servers": servers}
    return (plain, {**plain, "manifestHash": manifest_hash})


# --- definition.file: the answer (section 3) -----------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRange:
    """``size``: the whole file's, in bytes, when the answer tells; ``eof``: whether it says that nothing is left."""

    data: bytes
    size: int | None
    eof: bool | None


def read_definition_file(answer: Json) -> FileRange:
    """Raises ContractViolation when the answer holds no base64 bytes."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("base64"), str):
        raise ContractViolation("definition.file: the answer has no base64")
    size, eof = answer.get("size"), answer.get("eof")
    return FileRange(
        data=_bytes_of(answer["base64"], "definition.file: base64"),
        size=size if isinstance(size, int) and not isinstance(size, bool) else None,
        eof=eof if isinstance(eof, bool) else None,
    )


# --- artifact.write, op file: the form of sha256 (section 4b) ------------------------------------------------------------


def artifact_hash_forms(sha256_hex: str) -> tuple[str, ...]:
    """Forms of a folder file's ``sha256``, likeliest first: the next is tried after ``invalid``."""
    return (sha256_hex, f"sha256:{sha256_hex}")


# --- workspace.*: the members of a call (section 10) ---------------------------------------------------------------------


def read_workspace_call(method: str, params: Json) -> WorkspaceCall:
    """A tool call of ``workspace.read``, ``.write`` or ``.exec``. Raises ContractViolation naming the member at fault;
    a disk operation, whose shape is unknown, is one of these."""
    if not isinstance(params, dict):
        raise ContractViolation(f"Invalid {method} request: params is not an object")
    nested = params.get("call")
    call = nested if isinstance(nested, dict) else params
    tool, arguments = call.get("tool"), call.get("input")
    if not isinstance(tool, str):
        raise ContractViolation(f"Invalid {method} request: tool: a tool's name is needed")
    if tool not in TOOLS_OF[method]:
        raise ContractViolation(f"Invalid {method} request: {method} does not run {tool}")
    if not isinstance(arguments, dict):
        raise ContractViolation(f"Invalid {method} request: input: an object is needed")
    session = _object(call.get("session"))
    spec = _object(call.get("spec"))
    environment = {
        **_object(spec.get("environment")),
        **_object(session.get("environment")),
        **_object(call.get("environment")),
    }
    return WorkspaceCall(
        tool=tool,
        input=arguments,
        owner_id=_id(method, session, "ownerId") or _id(method, session, "sessionId") or "",
        turn_id=_id(method, session, "activeTurnId"),
        environment={name: value for name, value in environment.items() if isinstance(value, str)},
        spec=spec,
    )


def _id(method: str, session: JsonObject, member: str) -> str | None:
    """An id of ``session``; None where there is none. Raises ContractViolation for a text that cannot be one."""
    value = session.get(member)
    if not isinstance(value, str) or not value:
        return None
    try:
        return _ID.validate_python(value)
    except ValidationError as fault:
        raise ContractViolation(f"Invalid {method} request: session.{member}: {first_fault(fault)}") from None


# --- setup: input files and commands (section 9) -------------------------------------------------------------------------


@dataclass(frozen=True)
class SetupFile:
    """``path`` as it came; ``mode`` None: the default. Bytes are whole here."""

    path: str
    content: bytes
    mode: int | None


@dataclass(frozen=True)
class SetupCommand:
    """``cwd`` None: the workspace. ``timeout_seconds`` None: the default."""

    command: str
    cwd: str | None
    env: dict[str, str]
    timeout_seconds: float | None
    name: str | None


@dataclass(frozen=True)
class SetupFault:
    """An entry that cannot be done: it fails the setup at its place, with these words."""

    where: str
    problem: str


SetupStep = SetupFile | SetupCommand | SetupFault


def read_setup(setup: Json) -> tuple[SetupStep, ...]:
    """The steps of an Agent's setup: files first, then commands, each in the order given. Never raises: what cannot be
    understood is a SetupFault in its place."""
    if setup is None:
        return ()
    if not isinstance(setup, Mapping):
        return (SetupFault("setup", f"an object with files and commands is needed, not {_kind(setup)}"),)
    files = _first(setup, "files", "inputs", "inputFiles")
    commands = _first(setup, "commands", "run")
    return (*_setup_files(files), *_setup_commands(commands))


def _setup_files(files: Json) -> list[SetupStep]:
    if files is None:
        return []
    if isinstance(files, Mapping):
        files = [
            {"path": path, **content} if isinstance(content, Mapping) else {"path": path, "content": content}
            for path, content in files.items()
        ]
    if not isinstance(files, list):
        return [SetupFault("setup.files", f"a list is needed, not {_kind(files)}")]
    return [_setup_file(f"setup.files[{index}]", entry) for index, entry in enumerate(files)]


def _setup_file(where: str, entry: Json) -> SetupStep:
    path = entry.get("path") if isinstance(entry, Mapping) else None
    if not isinstance(path, str) or not path or "\0" in path:
        return SetupFault(f"{where}.path", "a path is needed")
    try:
        mode = _mode(entry)
        content = _content(entry)
    except ContractViolation as fault:
        return SetupFault(f"{where} ({path})", str(fault))
    return SetupFile(path=path, content=content, mode=mode)


def _content(entry: Mapping[str, Json]) -> bytes:
    if isinstance(entry.get("base64"), str):
        return _bytes_of(entry["base64"], "base64")
    text = _first(entry, "content", "text")
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise ContractViolation("content: a lone surrogate is no text") from None
    raise ContractViolation("no bytes: base64 or content is needed")


def _mode(entry: Mapping[str, Json]) -> int | None:
    mode = entry.get("mode")
    if isinstance(mode, str):
        try:
            mode = int(mode.removeprefix("0o"), 8)
        except ValueError:
            raise ContractViolation(f"mode: {mode!r} is no octal mode such as 0755") from None
    if isinstance(mode, bool) or not (mode is None or isinstance(mode, int)):
        raise ContractViolation("mode: an octal text such as 0755 or a number is needed")
    if mode is None:
        return 0o755 if entry.get("executable") is True else None
    if not 0 <= mode <= 0o777:
        raise ContractViolation(f"mode: {mode:o} is not within 0 and 0777")
    return mode


def _setup_commands(commands: Json) -> list[SetupStep]:
    if commands is None:
        return []
    if isinstance(commands, str):
        commands = [commands]
    if not isinstance(commands, list):
        return [SetupFault("setup.commands", f"a list is needed, not {_kind(commands)}")]
    return [_setup_command(f"setup.commands[{index}]", entry) for index, entry in enumerate(commands)]


def _setup_command(where: str, entry: Json) -> SetupStep:
    if isinstance(entry, str):
        entry = {"command": entry}
    command = _first(entry, "command", "run") if isinstance(entry, Mapping) else None
    if not isinstance(command, str) or not command:
        return SetupFault(f"{where}.command", "a command is needed")
    env = entry.get("env") or {}
    if not isinstance(env, Mapping) or not all(isinstance(value, str) for value in env.values()):
        return SetupFault(f"{where}.env", "an object of names and texts is needed")
    cwd, name = entry.get("cwd"), entry.get("name")
    if not (cwd is None or isinstance(cwd, str)):
        return SetupFault(f"{where}.cwd", "a path is needed")
    milliseconds, seconds = entry.get("timeoutMs"), entry.get("timeout")
    for member, given in (("timeoutMs", milliseconds), ("timeout", seconds)):
        if given is not None and not _is_a_while(given):
            return SetupFault(f"{where}.{member}", "a number above 0 is needed")
    return SetupCommand(
        command=command,
        cwd=cwd,
        env=dict(env),
        timeout_seconds=milliseconds / 1000 if milliseconds is not None else seconds,
        name=name if isinstance(name, str) else None,
    )


_LONGEST = 1e12  # of a command's time, as a number of any unit: the clocks that count it hold no more


def _is_a_while(given: Json) -> bool:
    """Whether it is a finite number above 0: none that only an integer without bounds, or an infinity, can hold."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return False
    return 0 < given <= _LONGEST


def _first(entry: Mapping[str, Json], *names: str) -> Json:
    for name in names:
        if entry.get(name) is not None:
            return entry[name]
    return None


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _kind(value: Json) -> str:
    kinds = {
        str: "a text",
        list: "a list",
        dict: "an object",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")


def _bytes_of(text: str, member: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ContractViolation(f"{member}: not base64") from None
