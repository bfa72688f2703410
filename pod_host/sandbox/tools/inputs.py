"""What each tool takes: the host's check of what a model or a client sent, and the JSON Schema that a model is shown.

The host's alone: the worker never imports this module, nor pydantic.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, PydanticCustomError, core_schema

from pod_host.errors import InputIssue, InvalidToolInput
from pod_host.limits import (
    BASH_TIMEOUT_MOST_SECONDS,
    BASH_TIMEOUT_SECONDS,
    GREP_RESULTS,
    GREP_RESULTS_MOST,
    READ_LINES,
    READ_LINES_MOST,
)
from pod_host.sandbox.outcomes import Json

_Text: TypeAlias = Annotated[str, Field(min_length=1)]


class ToolInput(BaseModel):
    """A tool's input. Strict: no member that is not named here, no "5" for 5, no null for a member left out."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _text_or_nothing(cls, value: object) -> object:
        if value is None:
            raise PydanticCustomError("null", "must not be null; leave the member out")
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise PydanticCustomError("not_unicode", "must not hold half of a surrogate pair") from None
        return value

    @field_validator("path", "command", "pattern", "glob", mode="after", check_fields=False)
    @classmethod
    def _no_nul(cls, value: str) -> str:
        if "\0" in value:
            raise PydanticCustomError("nul_character", "must not hold a NUL character")
        return value

    def for_worker(self) -> dict[str, Json]:
        """The members as ``run_file_tool`` takes them."""
        return self.model_dump(exclude_none=True)


class BashInput(ToolInput):
    command: _Text = Field(description="The command.")
    timeout: int = Field(
        default=BASH_TIMEOUT_SECONDS, ge=1, le=BASH_TIMEOUT_MOST_SECONDS, description="Seconds until it is killed."
    )


class ReadInput(ToolInput):
    path: _Text = Field(description="The file.")
    offset: int = Field(default=1, ge=1, description="Line to begin with; the first is 1.")
    limit: int = Field(default=READ_LINES, ge=1, le=READ_LINES_MOST, description="Lines at most.")


class WriteInput(ToolInput):
    path: _Text = Field(description="The file.")
    content: str = Field(description="Its whole new content.")


class EditInput(ToolInput):
    path: _Text = Field(description="The file.")
    old_string: _Text = Field(description="The text to replace, exactly as in the file.")
    new_string: str = Field(description="What takes its place.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


class GrepInput(ToolInput):
    pattern: _Text = Field(description="Regular expression (ripgrep).")
    path: _Text | None = Field(default=None, description="File or directory to search.")
    glob: _Text | None = Field(default=None, description="Names of files to search, such as *.py.")
    ignore_case: bool = Field(default=False, description="Ignore upper and lower case.")
    max_results: int = Field(default=GREP_RESULTS, ge=1, le=GREP_RESULTS_MOST, description="Lines at most.")


class GlobInput(ToolInput):
    pattern: _Text = Field(description="Such as **/*.csv.")
    path: _Text | None = Field(default=None, description="Directory to search below.")


TOOL_INPUTS: Final[Mapping[str, type[ToolInput]]] = {
    "bash": BashInput,
    "read": ReadInput,
    "write": WriteInput,
    "edit": EditInput,
    "grep": GrepInput,
    "glob": GlobInput,
}
"""The six tools, in the order in which a model is offered them."""

WRITING_TOOLS: Final = frozenset({"bash", "write", "edit"})
"""Those that change something; the others only read."""


def parse_input(tool: str, value: Json) -> ToolInput:
    """``value`` as the input of ``tool`` (one of TOOL_INPUTS). Raises ``InvalidToolInput`` with every fault of it."""
    try:
        return TOOL_INPUTS[tool].model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidToolInput(tool, [_issue(tool, detail) for detail in details]) from None


def _issue(tool: str, detail: ErrorDetails) -> InputIssue:
    path = list(detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = ", ".join(TOOL_INPUTS[tool].model_fields)
        return {"path": path, "code": "unknown_member", "message": f'{tool} has no member "{path[-1]}"; it has {known}'}
    if detail["type"] == "model_type":
        return {"path": path, "code": "not_an_object", "message": f"the input of {tool} is an object"}
    return {"path": path, "code": detail["type"], "message": detail["msg"]}


class _Compact(GenerateJsonSchema):
    """Without pydantic's titles, and without null beside a type: a member that is not meant is left out."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def input_schema(tool: str) -> dict[str, Json]:
    """The JSON Schema of the input of ``tool`` (one of TOOL_INPUTS), as a model is shown it. A new one each time."""
    return copy.deepcopy(_input_schema(tool))


@cache
def _input_schema(tool: str) -> dict[str, Json]:
    schema = TOOL_INPUTS[tool].model_json_schema(schema_generator=_Compact)
    del schema["title"]
    schema.pop("description", None)
    for member in schema["properties"].values():
        if member.get("default", ...) is None:
            del member["default"]
    return schema
