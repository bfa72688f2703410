"""What an Agent may have, end to end: the embedded Runtime, the real host, its sandbox and a chat, as processes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from pod_host.contract.canonical import canonical, sha256_hex
from pod_host.dev.skills import read_skill
from tests.dev.test_command import dev, place

__all__ = ["place"]

AGENT = """
name: featured
instructions: Be exact.
memory: {access: read_write, instructions: Remember numbers.}
selfWake: true
skills: [greeting]
"""
SKILL_MD = "---\nname: greeting\ndescription: How to greet.\n---\n# Greeting\nRun greet.sh.\n"


@pytest.fixture
def agent(place: Path) -> Path:
    skill = place / "greeting"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL_MD)
    (skill / "scripts" / "greet.sh").write_text("echo greetings from the skill\n")
    path = place / "agent.yaml"
    path.write_text(AGENT)
    return path


def talk(place: Path, agent: Path, *messages: str) -> subprocess.CompletedProcess[str]:
    return dev(place, "--agent", str(agent), stdin="\n".join(messages) + "\n")


def test_memory_is_kept_from_one_session_to_the_next(place: Path, agent: Path) -> None:
    workspace = place / "workspace"
    ran = dev(place, "--agent", str(agent), "--keep", str(workspace), "--message", "remember that the answer is 42")
    assert ran.returncode == 0, ran.stderr
    assert "I keep that in /memories/the-answer-is-42.md" in ran.stdout
    again = dev(place, "--agent", str(agent), "--keep", str(workspace), "--message", "what do you remember?")
    assert again.returncode == 0, again.stderr
    assert re.search(r"/memories/the-answer-is-42\.md:\n.*the answer is 42", again.stdout, re.DOTALL)


def test_a_memory_call_that_does_not_fit_is_told_to_the_model(place: Path, agent: Path) -> None:
    ran = talk(place, agent, 'use the tool memory with {"command": "create", "path": "/etc/x", "file_text": "x"}')
    assert ran.returncode == 0, ran.stderr
    assert "tool.invalid-input" in ran.stdout
    assert "under /memories is needed, without . and .." in " ".join(ran.stdout.split())


def test_a_wake_is_set(place: Path, agent: Path) -> None:
    ran = talk(place, agent, "wake up in 2h and list the files")
    assert ran.returncode == 0, ran.stderr
    assert "I wake in 2h" in ran.stdout


def test_a_skill_is_loaded_run_and_cannot_be_changed(place: Path, agent: Path) -> None:
    skill = read_skill(place / "greeting", "here")
    folder = f"greeting@{sha256_hex(canonical(skill.manifest()['files']))[:12]}"
    ran = talk(
        place,
        agent,
        'use the tool load_skill with {"name": "greeting"}',
        'use the tool read_skill_resource with {"name": "greeting", "path": "scripts/greet.sh"}',
        f"run `sh $(dirname $(pwd))/skills/{folder}/scripts/greet.sh`",
        f"run `echo x > $(dirname $(pwd))/skills/{folder}/SKILL.md || echo refused`",
    )
    assert ran.returncode == 0, ran.stderr
    assert "# Greeting" in ran.stdout
    assert "description: How to greet." not in ran.stdout
    assert f"/skills/{folder}" in ran.stdout
    assert "greetings from the skill" in ran.stdout
    assert "refused" in ran.stdout


def test_the_output_fits_the_agents_schema(place: Path) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    path = place / "agent.json"
    path.write_text(json.dumps({"name": "structured", "outputSchema": schema}))
    ran = dev(place, "--agent", str(path), "--message", "run `echo $((40 + 2))`")
    assert ran.returncode == 0, ran.stderr
    (said,) = re.findall(r"^\s*(\{.*\})\s*$", ran.stdout, re.MULTILINE)
    assert isinstance(json.loads(said)["sum"], int)


def test_a_reference_that_would_be_fetched_fails_the_turn(place: Path) -> None:
    path = place / "agent.json"
    path.write_text(json.dumps({"name": "broken", "outputSchema": {"$ref": "http://127.0.0.1:9/schema.json"}}))
    ran = dev(place, "--agent", str(path), "--message", "hello")
    assert ran.returncode == 1
    assert "output.invalid_schema" in ran.stdout
    assert "nothing is fetched" in ran.stdout
