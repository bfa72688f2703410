"""The shapes that v5's text leaves open: every reasonable form is taken, nothing else is guessed."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pod_host.contract.open_points import (
    FEATURE_FORMS,
    FileRange,
    SetupCommand,
    SetupFault,
    SetupFile,
    artifact_hash_forms,
    http_call_bodies,
    mcp_snapshots,
    memory_index,
    read_definition_file,
    read_setup,
    read_workspace_call,
    used_definition,
)
from pod_host.errors import ContractViolation


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def command(text: str, **members: Any) -> SetupCommand:
    return SetupCommand(**{"command": text, "cwd": None, "env": {}, "timeout_seconds": None, "name": None, **members})


# --- Setup ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, {}, {"files": None, "commands": None}, {"files": [], "commands": []}])
def test_no_setup_has_no_steps(nothing: Any) -> None:
    assert read_setup(nothing) == ()


def test_files_come_first_then_commands_in_their_order() -> None:
    steps = read_setup(
        {
            "commands": [
                "make",
                {"command": "make test", "cwd": "sub", "env": {"A": "1"}, "timeoutMs": 1500, "name": "tests"},
            ],
            "files": [
                {"path": "a.txt", "content": "ü"},
                {"path": "b.bin", "base64": b64(b"\0\xff"), "mode": "0755"},
                {"path": "c", "content": "", "mode": 0o600},
                {"path": "d", "content": "x", "executable": True},
            ],
        }
    )
    assert steps == (
        SetupFile("a.txt", "ü".encode(), None),
        SetupFile("b.bin", b"\0\xff", 0o755),
        SetupFile("c", b"", 0o600),
        SetupFile("d", b"x", 0o755),
        command("make"),
        command("make test", cwd="sub", env={"A": "1"}, timeout_seconds=1.5, name="tests"),
    )


@pytest.mark.parametrize(
    ("setup", "step"),
    [
        ({"inputs": [{"path": "a", "text": "x"}]}, SetupFile("a", b"x", None)),
        ({"inputFiles": {"a": "x"}}, SetupFile("a", b"x", None)),
        ({"files": {"a": {"base64": b64(b"x"), "mode": "0o644"}}}, SetupFile("a", b"x", 0o644)),
        ({"commands": "make"}, command("make")),
        ({"run": [{"run": "make", "timeout": 30}]}, command("make", timeout_seconds=30)),
        ({"commands": [{"command": "make", "env": None, "cwd": None, "later": 1}]}, command("make")),
    ],
)
def test_other_forms_of_setup_are_taken(setup: Any, step: object) -> None:
    assert read_setup(setup) == (step,)


@pytest.mark.parametrize(
    ("setup", "where", "problem"),
    [
        ([], "setup", "an object with files and commands is needed, not a list"),
        ({"files": "a"}, "setup.files", "a list is needed, not a text"),
        ({"files": [5]}, "setup.files[0].path", "a path is needed"),
        ({"files": [{"path": "a\0b", "content": ""}]}, "setup.files[0].path", "a path is needed"),
        ({"files": [{"path": "a"}]}, "setup.files[0] (a)", "no bytes: base64 or content is needed"),
        (
            {"files": [{"path": "a", "sha256": "sha256:00"}]},
            "setup.files[0] (a)",
            "no bytes: base64 or content is needed",
        ),
        ({"files": [{"path": "a", "base64": "%%%"}]}, "setup.files[0] (a)", "base64: not base64"),
        ({"files": [{"path": "a", "content": "\ud83d"}]}, "setup.files[0] (a)", "content: a lone surrogate is no text"),
        ({"files": [{"path": "a", "content": "", "mode": "rwx"}]}, "setup.files[0] (a)", "no octal mode"),
        ({"files": [{"path": "a", "content": "", "mode": "7777"}]}, "setup.files[0] (a)", "is not within 0 and 0777"),
        ({"files": [{"path": "a", "content": "", "mode": True}]}, "setup.files[0] (a)", "mode: "),
        ({"commands": 5}, "setup.commands", "a list is needed, not a number"),
        ({"commands": [{"cwd": "x"}]}, "setup.commands[0].command", "a command is needed"),
        ({"commands": [{"command": "x", "env": {"A": 1}}]}, "setup.commands[0].env", "names and texts"),
        ({"commands": [{"command": "x", "cwd": 5}]}, "setup.commands[0].cwd", "a path is needed"),
        ({"commands": [{"command": "x", "timeoutMs": 0}]}, "setup.commands[0].timeoutMs", "a number above 0"),
        ({"commands": [{"command": "x", "timeout": True}]}, "setup.commands[0].timeout", "a number above 0"),
    ],
)
def test_what_cannot_be_done_is_a_fault_in_its_place(setup: Any, where: str, problem: str) -> None:
    [fault] = read_setup(setup)
    assert isinstance(fault, SetupFault)
    assert fault.where == where
    assert problem in fault.problem


# --- Workspace calls -------------------------------------------------------------------------------------------------------


def test_a_workspace_call_names_tool_session_and_variables() -> None:
    call = read_workspace_call(
        "workspace.exec",
        {
            "tool": "bash",
            "input": {"command": "ls"},
            "session": {"sessionId": "s1", "ownerId": "o1", "activeTurnId": "t1", "environment": {"B": "session"}},
            "spec": {"environment": {"A": "spec", "B": "spec", "N": 5}},
            "environment": {"C": "call"},
        },
    )
    assert (call.tool, call.input, call.owner_id, call.turn_id) == ("bash", {"command": "ls"}, "o1", "t1")
    assert call.environment == {"A": "spec", "B": "session", "C": "call"}


def test_a_nested_call_without_a_turn_is_taken() -> None:
    nested_call = {
        "call": {"tool": "read", "input": {"path": "a"}, "session": {"sessionId": "s1", "activeTurnId": None}}
    }
    call = read_workspace_call("workspace.read", nested_call)
    assert (call.tool, call.owner_id, call.turn_id, call.environment) == ("read", "s1", None, {})


@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        ("workspace.read", [], "params is not an object"),
        ("workspace.read", {"operation": "disk.list"}, "tool: a tool's name is needed"),
        ("workspace.read", {"tool": "bash", "input": {}}, r"workspace\.read does not run bash"),
        ("workspace.write", {"tool": "edit", "input": "x"}, "input: an object is needed"),
    ],
)
def test_what_is_no_tool_call_is_a_violation(method: str, params: Any, told: str) -> None:
    with pytest.raises(ContractViolation, match=told):
        read_workspace_call(method, params)


# --- The rest --------------------------------------------------------------------------------------------------------------


def test_a_definition_file_is_base64_with_or_without_its_size() -> None:
    assert read_definition_file({"base64": b64(b"abc"), "size": 9, "eof": False}) == FileRange(b"abc", 9, False)
    assert read_definition_file({"base64": "", "size": True, "eof": "yes"}) == FileRange(b"", None, None)
    for bad in (None, {}, {"base64": 5}, {"base64": "*"}):
        with pytest.raises(ContractViolation, match=r"definition\.file"):
            read_definition_file(bad)


def test_ladders_start_with_the_likeliest_form() -> None:
    assert FEATURE_FORMS == ({"workspace": {"backends": ["local"]}}, {"workspace": True}, {})
    assert artifact_hash_forms("ab") == ("ab", "sha256:ab")
    first, *others = http_call_bodies("search", "e1", "t1", {"q": 1})
    assert first == {"tool": {"toolName": "search"}, "effectId": "e1", "input": {"q": 1}}
    assert [set(body) for body in others] == [{"tool", "effectId", "input", "turnId"}, {"tool", "effectId", "input"}]
    for body in http_call_bodies("search", "e1", "t1", {}, "scribe"):
        assert body["tool"]["agentId"] == "scribe"
    assert mcp_snapshots([], "m")[0] == {"snapshotSchemaVersion": 2, "servers": []}


@pytest.mark.parametrize(("value", "text"), [(None, ""), ("- /a", "- /a"), (["- /a", "- /b"], "- /a\n- /b"), (5, "")])
def test_a_memory_index_is_one_text(value: Any, text: str) -> None:
    assert memory_index(value) == text


@pytest.mark.parametrize(
    ("agent", "agent_id"),
    [
        ({"instructions": "x"}, "tool"),
        ({"id": "a", "instructions": "x"}, "a"),
        ({"name": "a", "harness": {"instructions": "x"}}, "a"),
        ({"manifest": {"id": "a", "instructions": "x"}}, "a"),
        ("listed", "listed"),
        ({"id": "named"}, "named"),
    ],
)
def test_an_agent_used_as_a_tool_is_defined_there_or_named(agent: Any, agent_id: str) -> None:
    own = {"agents": {"named": {"instructions": "x"}}}
    root = {"harness": {"agents": [{"name": "listed", "manifest": {"instructions": "x"}}]}}
    used = used_definition("tool", agent, (own, root))
    assert (used.id, used.manifest["instructions"], used.model) == (agent_id, "x", None)


def test_the_model_of_an_agent_used_as_a_tool_is_its_id_or_a_choice() -> None:
    for model in ("small", {"id": "small", "provider": "any"}):
        used = used_definition("tool", {"instructions": "x", "model": model}, ())
        assert used.model is not None
        assert used.model.wire() == {"id": "small"}
