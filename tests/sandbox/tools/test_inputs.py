"""Inputs: what is taken, how a fault is named, and what a model is shown."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest

from pod_host.errors import InvalidToolInput
from pod_host.sandbox.tools.inputs import TOOL_INPUTS, WRITING_TOOLS, input_schema, parse_input
from pod_host.sandbox.tools.running import FILE_TOOLS
from pod_host.sandbox.tools.texts import tool_texts

LEAST: dict[str, dict[str, object]] = {
    "bash": {"command": "true"},
    "read": {"path": "f"},
    "write": {"path": "f", "content": ""},
    "edit": {"path": "f", "old_string": "a", "new_string": ""},
    "grep": {"pattern": "x"},
    "glob": {"pattern": "*"},
}


def faults(tool: str, value: object) -> list[tuple[list[str | int], str]]:
    with pytest.raises(InvalidToolInput) as raised:
        parse_input(tool, value)
    assert raised.value.code == "tool.invalid-input"
    json.dumps(raised.value.issues)
    return [(issue["path"], issue["code"]) for issue in raised.value.issues]


def test_members_left_out_take_their_defaults() -> None:
    assert {tool: parse_input(tool, value).for_worker() for tool, value in LEAST.items()} == {
        "bash": {"command": "true", "timeout": 120},
        "read": {"path": "f", "offset": 1, "limit": 2000},
        "write": {"path": "f", "content": ""},
        "edit": {"path": "f", "old_string": "a", "new_string": "", "replace_all": False},
        "grep": {"pattern": "x", "ignore_case": False, "max_results": 200},
        "glob": {"pattern": "*"},
    }


@pytest.mark.parametrize("tool", TOOL_INPUTS)
def test_an_unknown_member_is_named(tool: str) -> None:
    with pytest.raises(InvalidToolInput, match=f'{tool} has no member "cwd"; it has ') as raised:
        parse_input(tool, {**LEAST[tool], "cwd": "/"})
    assert raised.value.issues[0]["path"] == ["cwd"]


@pytest.mark.parametrize("tool", TOOL_INPUTS)
@pytest.mark.parametrize("value", [None, [], "x", 5])
def test_what_is_no_object_is_said_to_be_none(tool: str, value: object) -> None:
    assert faults(tool, value) == [([], "not_an_object")]


def test_every_fault_is_reported_with_its_member() -> None:
    assert faults("edit", {"old_string": "", "replace_all": "yes"}) == [
        (["path"], "missing"),
        (["old_string"], "string_too_short"),
        (["new_string"], "missing"),
        (["replace_all"], "bool_type"),
    ]


@pytest.mark.parametrize(
    ("tool", "member", "value"),
    [
        ("bash", "command", ""),
        ("bash", "command", "a\0b"),
        ("bash", "command", "\ud83d"),
        ("bash", "timeout", 0),
        ("bash", "timeout", 601),
        ("bash", "timeout", 1.5),
        ("bash", "timeout", "5"),
        ("bash", "timeout", True),
        ("bash", "timeout", None),
        ("read", "path", 5),
        ("read", "path", "a\0b"),
        ("read", "offset", 0),
        ("read", "limit", 5001),
        ("write", "content", "\ud83d"),
        ("write", "content", None),
        ("grep", "glob", ""),
        ("grep", "path", None),
        ("grep", "max_results", 1001),
        ("glob", "path", ""),
    ],
)
def test_a_value_that_does_not_fit(tool: str, member: str, value: object) -> None:
    assert [path for path, _ in faults(tool, {**LEAST[tool], member: value})] == [[member]]


@pytest.mark.parametrize(
    ("tool", "member", "value"),
    [("bash", "timeout", 600), ("read", "limit", 5000), ("read", "offset", 10**12), ("write", "content", "a\0b")],
)
def test_a_value_at_its_bound_fits(tool: str, member: str, value: object) -> None:
    assert parse_input(tool, {**LEAST[tool], member: value}).for_worker()[member] == value


@pytest.mark.parametrize("tool", TOOL_INPUTS)
def test_the_schema_is_compact_and_says_what_the_model_says(tool: str) -> None:
    schema = input_schema(tool)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(LEAST[tool], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**LEAST[tool], "cwd": "/"}, schema)
    text = json.dumps(schema)
    assert "title" not in text
    assert "null" not in text
    assert "$" not in text
    assert all(member["description"] for member in schema["properties"].values())


def test_every_tool_has_a_text_an_input_and_a_function() -> None:
    texts = tool_texts("/workspace")
    assert list(texts) == list(TOOL_INPUTS) == ["bash", *FILE_TOOLS]
    assert set(TOOL_INPUTS) > WRITING_TOOLS
    assert "15 000" in texts["bash"]
    assert all("/workspace" in texts[tool] for tool in ("bash", "read", "write", "grep", "glob"))


def test_the_worker_side_imports_nothing_but_the_standard_library() -> None:
    """The worker is to stay small: no pydantic, no asyncio, no sockets."""
    program = (
        "import sys; before = set(sys.modules); import pod_host.sandbox.tools; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {"pod_host"}
    assert set(loaded) - ours <= set(sys.stdlib_module_names)
    assert not {"asyncio", "socket", "multiprocessing"} & set(loaded)
