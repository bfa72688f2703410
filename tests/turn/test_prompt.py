"""The system text: what it promises, and that the same turn gives the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.turn_start import TurnStart
from pod_host.turn import Reported
from pod_host.turn.prompt import system_text
from pod_host.turn.sandbox_tools import SandboxTools
from pod_host.turn.stop import Stop
from pod_host.turn.toolset import Toolset
from tests.turn.double import Runtime, script, text
from tests.turn.json_values import crossed, texts, values
from tests.turn.sandbox_double import Sandbox


def start(manifest: JsonObject | None = None, **sandbox: Json) -> TurnStart:
    return TurnStart.read(
        {
            "manifest": manifest or {"id": "coder", "instructions": "Be exact."},
            "checkpoint": {"sessionId": "s", "turnId": "t", "segment": 0, "manifestHash": "h", "input": "Hi"},
            "routing": {"sandbox": {"ownerId": "s", **sandbox}},
        }
    )


hosts = st.lists(st.from_regex(r"[a-z]{1,8}\.[a-z]{2,3}", fullmatch=True), max_size=4)
starts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "instructions": texts | st.lists(texts, max_size=3) | values,
        "allow": hosts | st.none(),
        "environment": st.dictionaries(texts, st.just("nylorun_managed") | texts, max_size=3),
        "notes": st.lists(texts, max_size=2),
    }
)


@given(starts, st.integers(0, 9))
def test_the_same_turn_gives_the_same_prompt_byte_for_byte(given_start: dict[str, Any], seed: int) -> None:
    def prompt(shuffled: bool) -> str:
        manifest = {"id": "a", "instructions": given_start["instructions"]}
        sandbox = {"spec": {"network": {"allow": given_start["allow"]}}, "environment": given_start["environment"]}
        if shuffled:
            manifest, sandbox = crossed(manifest, seed), crossed(sandbox, seed)
        return system_text(start(manifest, **sandbox), workspace="/workspace", notes=given_start["notes"])

    assert prompt(shuffled=False) == prompt(shuffled=True)
    assert prompt(shuffled=False).strip() == prompt(shuffled=False)


@pytest.mark.parametrize(
    ("instructions", "shown"),
    [
        ("Be exact.", "Be exact."),
        (["Be exact.", "", "Be kind."], "Be exact.\n\nBe kind."),
        ("", ""),
        (None, ""),
        ({"text": "?"}, ""),
    ],
)
def test_the_agents_instructions_come_first_and_alone_without_a_sandbox(instructions: Json, shown: str) -> None:
    manifest = {"id": "a", "instructions": instructions}
    assert system_text(start(manifest), workspace=None, notes=()) == shown


def test_the_hosts_notes_come_last() -> None:
    text = system_text(start(), workspace="/work", notes=["Setup failed: no such package."])
    assert text.startswith("Be exact.\n\n# Sandbox\n- Commands and relative paths start in /work.")
    assert text.endswith("\n\nSetup failed: no such package.")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"network": {"preset": "none", "allow": ["packages.example", "*.github.com"]}},
            "(http:// URLs are refused): packages.example, *.",
        ),
        ({"network": {"preset": "none", "allow": []}}, "Network: commands reach no host."),
        ({"network": {"preset": "none"}}, "Network: commands reach no host."),
        ({"network": {"preset": "other"}}, "Network: commands reach what a policy allows"),
        ({}, "Network: commands reach what a policy allows"),
        (None, "Network: commands reach what a policy allows"),
    ],
)
def test_what_the_network_allows_is_said(spec: Json, said: str) -> None:
    assert said in system_text(start(spec=spec), workspace="/workspace", notes=())


async def test_http_urls_are_said_to_be_refused_where_no_relay_takes_them() -> None:
    for relayed in (False, True):
        runtime = Runtime(script(text("Hi")))
        assert await runtime.turn(Sandbox(plain_http=relayed)).run() == Reported("completed")
        told = runtime.model_calls[0]["prompt"][0]["content"][0]["text"]
        assert "through the proxy that their environment names" in told
        assert ("http:// URLs are refused" in told) == (not relayed)


def test_secrets_are_named_and_never_shown() -> None:
    environment = {"TOKEN": "nylorun_managed", "API_KEY": "nylorun_managed", "PLAIN": "value"}
    text = system_text(start(environment=environment), workspace="/workspace", notes=())
    assert "- API_KEY, TOKEN: in commands each holds nylorun_managed" in text
    assert "PLAIN" not in text
    assert "value" not in text


def test_the_text_is_short() -> None:
    assert len(system_text(start(), workspace="/workspace", notes=())) < 1000


async def test_the_offered_tools_are_the_same_bytes_each_time() -> None:
    def offered() -> bytes:
        return Toolset([SandboxTools(Sandbox(), "/workspace", None, Stop())]).definitions()

    assert offered() == offered()
