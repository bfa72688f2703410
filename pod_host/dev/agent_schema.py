"""The agent file's members and their types, and how a fault in one is told: where it is and what mends it."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, Self, get_args

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    HttpUrl,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from pod_host.contract.base import HARNESS_ID_PATTERN, Json, JsonObject, Sent, Text1
from pod_host.contract.model_call import ModelChoice

_URL = TypeAdapter(HttpUrl)


def _matching(pattern: str, mend: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise PydanticCustomError("agent_file", "{text}", {"text": f"{value!r} does not do; {mend}"})
        return value

    return AfterValidator(check)


def _check_url(value: str) -> str:
    try:
        _URL.validate_python(value)
    except ValidationError:
        text = f"{value!r} is no URL; write http://… or https://…"
        raise PydanticCustomError("agent_file", "{text}", {"text": text}) from None
    return value


def _check_schema(value: JsonObject) -> JsonObject:
    try:
        Draft202012Validator.check_schema(value)
    except SchemaError as fault:
        place = "".join(f"[{part!r}]" for part in fault.path)
        plain = fault.context[0] if fault.context else fault  # of two ways to write a member, the usual one
        text = f"no JSON Schema{' at ' + place if place else ''}: {plain.message}"
        raise PydanticCustomError("agent_file", "{text}", {"text": text}) from None
    return value


Name = Annotated[str, _matching(r"[A-Za-z0-9_-]{1,64}", "use letters, digits, - and _, at most 64")]
AgentName = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "use letters, digits, ., - and _, at most 64")]
VariableName = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "use letters, digits and _, no digit first")]
_HOST = "write a host's name or *.suffix, in small letters, without scheme, port and path"
HostName = Annotated[str, _matching(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", _HOST)]
HeaderName = Annotated[str, _matching(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "write a header's name, such as Authorization")]
HeaderValue = Annotated[str, _matching(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", "use printable ASCII in one line")]
VariableValue = Annotated[str, _matching(r"[^\0]*", "no variable can hold a NUL character")]
Url = Annotated[str, AfterValidator(_check_url)]
Schema = Annotated[JsonObject, AfterValidator(_check_schema)]
Approval = Literal["always", "never"]


class Member(Sent):
    """As strict as what crosses the wire; written back member by member, mixed lists and maps included."""

    def wire(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Harness(Member):
    id: Annotated[str, _matching(HARNESS_ID_PATTERN.pattern, "use a-z, 0-9 and -, 2 to 63, a letter first")]


class HttpRequest(Member):
    """``credential``: a variable of the Runtime's environment, sent as a bearer. ``headers`` may hold more, as ``${NAME}``.
    Values never enter the manifest."""

    url: Url
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    credential: VariableName | None = None
    headers: dict[HeaderName, HeaderValue] | None = None
    timeout_ms: Annotated[int, Field(gt=0, le=300_000, strict=True)] | None = None


class Tool(Member):
    """A tool behind HTTP, or another agent. ``approval`` ``always``: each call of an HTTP tool waits for a person."""

    name: Name
    description: str | None = None
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    http: HttpRequest | None = None
    agent: UsedAgent | None = None
    approval: Approval | None = None

    @model_validator(mode="after")
    def _one_of_http_and_agent(self) -> Self:
        if (self.http is None) == (self.agent is None):
            text = "one of http and agent is needed: what runs it"
            raise PydanticCustomError("agent_file", "{text}", {"text": text})
        return self

    def wire(self) -> JsonObject:
        return {"inputSchema": {"type": "object"}, **super().wire()} if self.http else super().wire()


class McpToolSetting(Member):
    enabled: bool | None = None
    approval: Approval | None = None
    deferred: bool | None = None


class McpServer(Member):
    """``tools``: settings by the tool's name on the server, or ``*`` for all. ``headers``: as an HTTP tool's."""

    name: Name
    type: Literal["streamable-http", "sse"] = "streamable-http"
    url: Url
    headers: dict[HeaderName, HeaderValue] | None = None
    tools: dict[str, McpToolSetting] | None = None
    deferred: bool | None = None
    approval: Approval | None = None

    def wire(self) -> JsonObject:
        return {"type": self.type, **super().wire()}


class SetupFile(Member):
    """One of ``content``, ``base64`` and ``from`` (a file beside the agent file) holds the bytes."""

    path: Text1
    content: str | None = None
    base64: str | None = None
    source: Annotated[Text1 | None, Field(alias="from")] = None
    mode: str | int | None = None


class SetupCommand(Member):
    command: Text1
    cwd: Text1 | None = None
    env: dict[VariableName, VariableValue] | None = None
    timeout_ms: Annotated[int, Field(gt=0, strict=True)] | None = None
    name: str | None = None


class Setup(Member):
    files: list[SetupFile] = []
    commands: list[Text1 | SetupCommand] = []


class Memory(Member):
    access: Literal["read_write", "read_only"] = "read_write"
    instructions: str | None = None


class EnvironmentSecretMember(Member):
    """The secret goes into ``header`` of every request to ``hosts``, after ``prefix``; commands see a placeholder. Its
    value: ``value``, or the Runtime's own variable ``fromEnv`` (left out: of the secret's name). Empty: a name and its
    placeholder, no more; a list of names is short for that."""

    hosts: list[HostName] = []
    header: HeaderName = "Authorization"
    prefix: str | None = None
    value: HeaderValue | None = None
    from_env: VariableName | None = None

    @model_validator(mode="after")
    def _goes_somewhere(self) -> EnvironmentSecretMember:
        if self.model_fields_set and not self.hosts:
            raise PydanticCustomError(
                "agent_file", "{text}", {"text": "hosts is missing; name those that get the secret"}
            )
        return self


class Network(Member):
    allow: list[HostName] = []


class AgentMembers(Member):
    """What an agent has, whether it is the session's or used as a tool."""

    description: str | None = None
    instructions: str | list[str] = ""
    tools: list[Tool] = []
    skills: list[Text1] = []
    mcp_servers: list[McpServer] = []
    output_schema: Schema | None = None
    model: ModelChoice | None = None

    @field_validator("tools", "mcp_servers")
    @classmethod
    def _names_differ(cls, entries: list[Any]) -> list[Any]:
        names = [entry.name for entry in entries]
        for name in names:
            if names.count(name) > 1:
                raise PydanticCustomError("agent_file", "{text}", {"text": f"{name} is there twice; rename one"})
        return entries

    def instructions_text(self) -> str:
        return self.instructions if isinstance(self.instructions, str) else "\n\n".join(self.instructions)


class UsedAgent(AgentMembers):
    """An agent used as a tool. ``name``: left out, the tool's."""

    name: AgentName | None = None


Tool.model_rebuild()


class AgentDocument(AgentMembers):
    name: AgentName
    harness: Harness = Harness(id="pod-host")
    setup: Setup | None = None
    environment: dict[VariableName, VariableValue] = {}
    environment_secrets: dict[VariableName, EnvironmentSecretMember] = {}
    memory: bool | Memory = False
    self_wake: Annotated[bool, Field(strict=True)] = False
    network: Network | None = None
    loop: Json = None

    @field_validator("environment_secrets", mode="before")
    @classmethod
    def _by_name(cls, secrets: Json) -> Json:
        if isinstance(secrets, list) and all(isinstance(name, str) for name in secrets):
            return {name: {} for name in secrets}
        return secrets

    def memory_wire(self) -> JsonObject | None:
        if isinstance(self.memory, Memory):
            return {"access": self.memory.access, **self.memory.wire()}
        return {"access": "read_write"} if self.memory else None


# --- Telling a fault -------------------------------------------------------------------------------------------------

_NEEDS = {
    "string_type": "a text is needed",
    "bool_type": "true or false is needed",
    "bool_parsing": "true or false is needed",
    "int_type": "a whole number is needed",
    "int_parsing": "a whole number is needed",
    "float_type": "a number is needed",
    "list_type": "a list is needed",
    "dict_type": "an object is needed",
    "model_type": "an object is needed",
    "model_attributes_type": "an object is needed",
    "string_too_short": "it is empty; write something or leave the member out",
}


_BOUNDS = {"greater_than": "above {gt}", "less_than_equal": "of at most {le}"}


def mend(fault: ValidationError) -> tuple[str, str]:
    """The first fault as (member path, what is wrong and what mends it)."""
    errors = fault.errors(include_url=False)
    # A union reports each of its branches: the one that came farthest says what the writer meant. A misspelt member
    # is also a missing one.
    error = max(
        (one for one in errors if one["loc"][:1] == errors[0]["loc"][:1] or one["type"] == "extra_forbidden"),
        key=lambda one: (len(_path(one["loc"])), one["type"] == "extra_forbidden"),
    )
    path = _path(error["loc"])
    if error["type"] == "extra_forbidden":
        return _joined(path), f"no such member{_instead(path)}"
    if error["type"] == "missing":
        return _joined(path), "is missing; add it"
    if error["type"] == "value_error":  # a null that stands for an absent member
        return _joined(path), error["msg"].removeprefix("Value error, ")
    return _joined(path), _problem(error)


def _problem(error: ErrorDetails) -> str:
    need = _NEEDS.get(error["type"])
    if error["type"] == "literal_error":
        return f"{error['input']!r} does not do; write {error['ctx']['expected']}"
    if error["type"] in _BOUNDS:
        return f"{error['input']!r} does not do; write a number {_BOUNDS[error['type']].format(**error['ctx'])}"
    if need is None:
        return error["msg"]
    given = error["input"]
    if error["type"] == "string_type" and isinstance(given, bool | int | float):
        written = str(given).lower() if isinstance(given, bool) else str(given)
        return f'{need}; write it in quotes: "{written}"'
    if error["type"] == "string_too_short":
        return need
    return f"{need}, not {_kind(given)}"


def _kind(value: Json) -> str:
    names = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "nothing")


def _path(location: tuple[int | str, ...]) -> list[int | str]:
    """The member's path in the file: pydantic also names the branch of a union, which no file holds."""
    return [part for part in location if part not in _BRANCHES]


def _joined(path: list[int | str]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _instead(path: list[int | str]) -> str:
    """What the writer may have meant, and what there is."""
    known = _members_at(AgentDocument, path[:-1])
    close = difflib.get_close_matches(str(path[-1]), known, 1)
    return f"; {f'did you mean {close[0]}? ' if close else ''}there are {', '.join(known)}"


def _members_at(model: type[BaseModel], path: list[int | str]) -> list[str]:
    for part in path:
        for name, info in model.model_fields.items():
            if (info.alias or name) == part:
                model = next(iter(_models_in(info.annotation)), model)
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


_BRANCHES = {"[key]", "str", "bool", "int", "list[str]", "constrained-str", SetupCommand.__name__, Memory.__name__}
