"""The agent file: what it says, and how a fault in it is told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pod_host.dev.agent import DEFAULT_AGENT, EnvironmentSecret, load_agent
from pod_host.dev.credentials import unset_variables
from pod_host.errors import AgentFileError

WHOLE = """
name: reviewer
harness: {id: my-harness}
instructions: [Be kind., Be short.]
tools: [{name: price, http: {url: "http://localhost:9/price"}, approval: always}]
skills: [./skills/tables]
mcpServers: [{name: files, url: "http://localhost:9/mcp"}]
setup:
  files: [{path: a.txt, content: hi, mode: 0755}, {path: b.bin, from: skills/tables/data.bin}]
  commands: [echo hi, {command: ls, timeoutMs: 5000}]
environment: {A: "1"}
environmentSecrets: [TOKEN]
memory: {access: read_only}
outputSchema: {type: object}
selfWake: true
network: {allow: [packages.example, "*.files.example"]}
loop: {steps: 3}
model: {controls: {temperature: 0.5}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    skill = tmp_path / "skills" / "tables"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tables\ndescription: Draws tables.\n---\nUse scripts/draw.sh.\n")
    (skill / "scripts" / "draw.sh").write_text("echo +--+\n")
    (skill / "data.bin").write_bytes(b"\x00\xff")
    return tmp_path


def refused(folder: Path, text: str, name: str = "agent.yaml") -> str:
    path = folder / name
    path.write_text(text)
    with pytest.raises(AgentFileError) as fault:
        load_agent(path)
    message = str(fault.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_every_member_is_read(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text(WHOLE)
    agent = load_agent(path)
    assert (agent.name, agent.harness_id) == ("reviewer", "my-harness")
    assert agent.instructions == "Be kind.\n\nBe short."
    assert agent.environment == {"A": "1"}
    assert agent.environment_secrets == {"TOKEN": EnvironmentSecret()}
    assert agent.memory == {"access": "read_only"}
    assert agent.network_allow == ("packages.example", "*.files.example")
    assert agent.loop == {"steps": 3}
    assert agent.self_wake
    assert agent.setup == {
        "files": [{"path": "a.txt", "content": "hi", "mode": 0o755}, {"path": "b.bin", "base64": "AP8="}],
        "commands": ["echo hi", {"command": "ls", "timeoutMs": 5000}],
    }


def test_the_manifest_is_flat_and_names_its_skills_files_by_hash(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text(WHOLE)
    agent = load_agent(path)
    manifest = agent.manifest()
    assert manifest["id"] == "reviewer"
    assert manifest["outputSchema"] == {"type": "object"}
    assert manifest["model"] == {"controls": {"temperature": 0.5}}
    assert manifest["tools"][0]["inputSchema"] == {"type": "object"}
    assert manifest["mcpServers"] == [{"type": "streamable-http", "name": "files", "url": "http://localhost:9/mcp"}]
    (skill,) = manifest["skills"]
    assert (skill["name"], skill["description"]) == ("tables", "Draws tables.")
    assert set(skill["files"]) == {"SKILL.md", "scripts/draw.sh", "data.bin"}
    assert skill["files"]["data.bin"] == "sha256:" + hashlib.sha256(b"\x00\xff").hexdigest()
    assert agent.files()[skill["files"]["data.bin"]] == b"\x00\xff"
    json.dumps(manifest)


def test_secrets_are_bound_to_hosts(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text(
        "name: x\nenvironmentSecrets:\n  A: {hosts: [api.example]}\n"
        "  B: {hosts: ['*.example'], header: X-Key, fromEnv: C}\n  D: {hosts: [d.example], prefix: 'token ', value: v}\n"
    )
    agent = load_agent(path)
    assert agent.environment_secrets == {
        "A": EnvironmentSecret(hosts=("api.example",), prefix="Bearer "),
        "B": EnvironmentSecret(hosts=("*.example",), header="X-Key", from_env="C"),
        "D": EnvironmentSecret(hosts=("d.example",), prefix="token ", value="v"),
    }
    assert "'v'" not in repr(agent)


def test_a_json_file_does_as_well(folder: Path) -> None:
    path = folder / "agent.json"
    path.write_text('{\n\t"name": "x",\n\t"memory": true\n}')
    assert load_agent(path).memory == {"access": "read_write"}


def test_only_the_name_is_needed(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text("name: x\nsetup: {commands: []}\nmemory: false\n")
    agent = load_agent(path)
    assert agent.harness_id == DEFAULT_AGENT.harness_id == "pod-host"
    assert agent.memory is None
    assert agent.setup == {"files": [], "commands": []}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "an object with members such as name"),
        ("[1]", "an object with members such as name"),
        ("name: [", "line 1, column 8: not YAML"),
        ("{}", "name: is missing; add it"),
        ("name: x\nname: y", "line 2, column 1: not YAML: name is there twice"),
        ("name: x\ninstrctions: y", "instrctions: no such member; did you mean instructions?"),
        ("name: 3", 'name: a text is needed; write it in quotes: "3"'),
        ("name: x\nenvironment: {P: 8080}", 'environment.P: a text is needed; write it in quotes: "8080"'),
        ("name: x\nenvironment: {a-b: c}", "environment.a-b: 'a-b' does not do; use letters"),
        ("name: x\nmemory: {acess: read_only}", "memory.acess: no such member; did you mean access?"),
        ("name: x\nmemory: {access: all}", "memory.access: 'all' does not do; write 'read_write' or 'read_only'"),
        ("name: x\ntools: {}", "tools: a list is needed, not an object"),
        ("name: x\ntools: [{name: t}]", "tools[0]: one of http and agent is needed: what runs it"),
        (
            "name: x\ntools: [{name: t, agent: {instructions: hi, tool: []}}]",
            "tools[0].agent.tool: no such member; did you",
        ),
        ("name: x\ntools: [{name: t, agent: {name: x}}]", "tools[0].agent.name: another agent has the name x; choose"),
        ("name: x\ntools: [{name: t, agent: {skills: [none]}}]", "tools[0].agent.skills[0]: "),
        ("name: x\ntools: [{name: t, http: {url: foo}}]", "tools[0].http.url: 'foo' is no URL"),
        ("name: x\nmcpServers: [{name: m, url: 'http://a', type: stdio}]", "mcpServers[0].type: 'stdio' does not do"),
        ("name: x\nsetup: {commands: [{cmd: ls}]}", "setup.commands[0].cmd: no such member"),
        ("name: x\nsetup: {commands: [3]}", "setup.commands[0]: a text is needed"),
        ("name: x\nsetup: {files: [{path: a}]}", "setup.files[0] (a): no bytes"),
        ("name: x\nsetup: {files: [{path: a, from: none}]}", "setup.files[0].from: none: No such file"),
        ("name: x\nsetup: {files: [{path: a, content: a, mode: '99'}]}", "setup.files[0] (a): mode:"),
        ("name: x\nenvironmentSecrets: {A: {value: v}}", "environmentSecrets.A: hosts is missing; name those"),
        ("name: x\nenvironmentSecrets: {A: {hosts: [a], host: b}}", "environmentSecrets.A.host: no such member"),
        (
            "name: x\nenvironmentSecrets: {A: {hosts: [a], header: 'A: b'}}",
            "environmentSecrets.A.header: 'A: b' does not",
        ),
        ("name: x\nenvironmentSecrets: [a-b]", "environmentSecrets.a-b: 'a-b' does not do; use letters"),
        (
            "name: x\noutputSchema: {type: text}",
            "outputSchema: no JSON Schema at ['type']: 'text' is not one of ['array'",
        ),
        ('name: x\nenvironment: {A: "a\\0b"}', "environment.A: 'a\\x00b' does not do; no variable can hold a NUL"),
        (
            "name: x\nsetup: {commands: [{command: a, timeoutMs: 0}]}",
            "setup.commands[0].timeoutMs: 0 does not do; write a number above 0",
        ),
        (
            "name: x\ntools: [{name: t, http: {url: 'http://a', timeoutMs: 300001}}]",
            "tools[0].http.timeoutMs: 300001 does not do; write a number of at most 300000",
        ),
        (
            "name: x\nmcpServers: [{name: m, url: 'http://a', headers: {'X Y': a}}]",
            "mcpServers[0].headers.X Y: 'X Y' does not do; write a header's name",
        ),
        ("name: x\ntools: [{name: t, http: {url: 'http://a', headers: {X: ä}}}]", "tools[0].http.headers.X: 'ä' does"),
        ("name: x\nloop: 2020-01-01", "loop: date is no JSON; write it in quotes"),
        ("name: x\nloop: {1: a}", "loop.1: a member's name must be a text"),
        ("name: x\nselfWake: 'yes'", "selfWake: true or false is needed, not a text"),
        ("name: x\nnetwork: {allow: ['http://x']}", "network.allow[0]: 'http://x' does not do; write a host's name"),
        ("name: x\nharness: {id: Mine}", "harness.id: 'Mine' does not do"),
        ("name: x\ndescription: null", "description is null; leave an absent member out"),
        ("name: x\nskills: [none]", "skills[0]: "),
    ],
)
def test_a_fault_is_one_line_with_the_member_and_the_mend(folder: Path, text: str, told: str) -> None:
    assert refused(folder, text).startswith(told)


def test_a_fault_of_a_json_file_has_its_line(folder: Path) -> None:
    assert refused(folder, '{"name": "x",}', "agent.json").startswith("line 1, column ")
    assert refused(folder, '{"name": "x", "loop": {"a": 1, "a": 2}}', "agent.json") == "not JSON: a is there twice"


def test_a_missing_file_and_one_that_is_no_text_are_told(folder: Path) -> None:
    with pytest.raises(AgentFileError, match=r"none\.yaml: cannot be read: No such file"):
        load_agent(folder / "none.yaml")
    (folder / "agent.yaml").write_bytes(b"name: \xff")
    with pytest.raises(AgentFileError, match="not UTF-8"):
        load_agent(folder / "agent.yaml")


def test_a_skill_needs_its_description(folder: Path) -> None:
    (folder / "skills" / "tables" / "SKILL.md").write_text("no head")
    assert "SKILL.md has no description" in refused(folder, "name: x\nskills: [skills/tables]")


def test_a_skill_with_a_link_is_refused(folder: Path) -> None:
    (folder / "skills" / "tables" / "passwd").symlink_to("/etc/passwd")
    assert "is no ordinary file" in refused(folder, "name: x\nskills: [skills/tables]")


def test_two_skills_of_one_name_are_refused(folder: Path) -> None:
    assert "skills[1]: a skill named tables" in refused(folder, "name: x\nskills: [skills/tables, skills/tables]")


def test_tools_and_servers_name_credentials_and_hold_none(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text(
        """
name: a
tools: [{name: t, http: {url: "http://localhost:9/", credential: SHOP, headers: {X-Key: "${KEY}"}}}]
mcpServers: [{name: m, url: "http://localhost:9/", headers: {Authorization: "Bearer ${KEY}"}, tools: {"*": {deferred: true}}}]
"""
    )
    manifest = load_agent(path).manifest()
    http = {"url": "http://localhost:9/", "credential": "SHOP", "headers": {"X-Key": "${KEY}"}}
    assert manifest["tools"] == [{"name": "t", "inputSchema": {"type": "object"}, "http": http}]
    assert manifest["mcpServers"][0]["headers"] == {"Authorization": "Bearer ${KEY}"}
    assert manifest["mcpServers"][0]["tools"] == {"*": {"deferred": True}}
    text = 'name: a\ntools: [{name: t, http: {url: "http://localhost:9/", credential: "Bearer secret"}}]\n'
    assert "tools[0].http.credential" in refused(folder, text)


def test_variables_that_it_names_and_that_are_not_set_are_told(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text(
        """
name: a
tools:
  - {name: t, http: {url: "http://localhost:9/", credential: SHOP, headers: {X-Key: "${KEY}/${SET}"}}}
  - {name: u, agent: {mcpServers: [{name: m, url: "http://localhost:9/", headers: {A: "${DEEP}"}}]}}
environmentSecrets: {S: {hosts: [a.example]}, T: {hosts: [b.example], fromEnv: FROM}, V: {hosts: [c.example], value: v}}
"""
    )
    assert unset_variables(load_agent(path), {"SET": "x", "FROM": ""}) == [
        "the tool t needs the variable SHOP, which is not set",
        "the tool t needs the variable KEY, which is not set",
        "the MCP server m needs the variable DEEP, which is not set",
        "the secret S needs the variable S, which is not set",
        "the secret T needs the variable FROM, which is not set",
    ]


def test_an_agent_used_as_a_tool_is_flat_in_the_manifest_with_its_own_tools_and_skills(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text(
        """
name: editor
tools:
  - name: draw
    description: Draws.
    agent:
      instructions: [Draw., Be exact.]
      skills: [skills/tables]
      outputSchema: {type: object}
      tools:
        - {name: price, http: {url: "http://localhost:9/price"}}
        - {name: ask, inputSchema: {type: object}, agent: {name: oracle, instructions: Answer.}}
"""
    )
    agent = load_agent(path)
    (tool,) = agent.manifest()["tools"]
    assert tool["name"] == "draw"
    assert "inputSchema" not in tool
    used = tool["agent"]
    assert (used["id"], used["instructions"]) == ("draw", "Draw.\n\nBe exact.")
    assert [skill["name"] for skill in used["skills"]] == ["tables"]
    assert used["tools"][0]["inputSchema"] == {"type": "object"}
    assert used["tools"][1]["agent"]["id"] == "oracle"
    assert used["tools"][1]["agent"]["tools"] == []
    assert set(used["skills"][0]["files"].values()) <= set(agent.files())
