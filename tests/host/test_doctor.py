"""The doctor: run as a program in a pod's environment, healthy and not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pod_host.host.doctor.clients import CLIENTS, verdict, version_in
from pod_host.host.doctor.findings import Finding, as_json, as_table, is_well
from pod_host.host.doctor.rehearsal import CA, TOKEN, USER, Seen, Stage
from tests.host.conftest import pod_environment
from tests.host.core import Core


@dataclass
class Examined:
    code: int
    findings: list[dict[str, str]]
    text: str

    def of(self, subject: str, name: str) -> tuple[str, str]:
        """The state, and what is said."""
        (found,) = [one for one in self.findings if (one["subject"], one["name"]) == (subject, name)]
        return found["state"], found["says"]


async def examine(environment: dict[str, str]) -> Examined:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pod_host", "doctor", "--json",
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    told: dict[str, Any] = json.loads(out)
    assert process.returncode is not None
    assert told["ok"] == (process.returncode == 0)
    return Examined(process.returncode, told["findings"], out.decode() + err.decode())


@pytest.fixture
async def egress() -> AsyncIterator[str]:
    """An egress proxy that wants a token."""
    stage = Stage()
    await stage.open()
    yield "http://{}:{}".format(*stage.address)
    await stage.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def healthy(pod: Path, core: Core, egress: str) -> dict[str, str]:
    return pod_environment(
        pod,
        core.url,
        NYLORUN_EGRESS_PROXY=egress,
        NYLORUN_SANDBOX_BLOCKED_PROBE=f"127.0.0.1:{closed_port()}",
        POD_HOST_NETWORK_GATE="on",
        POD_HOST_EGRESS="relay",
    )


async def test_in_a_healthy_pod_all_is_well(pod: Path, core: Core, egress: str) -> None:
    seen = await examine(healthy(pod, core, egress))
    assert seen.code == 0, seen.text
    assert seen.of("environment", "launch contract")[0] == "ok"
    assert seen.of("join", "token")[0] == "ok"
    for name in ("Harness API", "gates", "egress proxy", "policy"):
        assert seen.of("network", name)[0] == "ok"
    assert seen.of("clock", "wall clock")[0] == "ok"
    for name in ("host's directory", "workspace", "skills", "temporary"):
        assert seen.of("disk", name)[0] in ("ok", "warning")
    assert seen.of("confinement", "join token")[0] == seen.of("confinement", "/tmp")[0] == "ok"
    if shutil.which("curl"):
        assert seen.of("clients", "curl")[1].endswith(": authenticates, and trusts the CA")
    assert core.joins.all == []  # a join would end the host that runs
    assert "join-token-1" not in seen.text
    assert sorted(os.listdir(pod / "harness")) == []
    state, says = seen.of("confinement", "shares")
    assert (
        says.startswith("cgroup, ") if state == "ok" else (state, says) == ("note", "none: no controller is delegated")
    )


async def test_what_would_fail_is_told_and_the_exit_code_is_1(pod: Path, core: Core, egress: str) -> None:
    (pod / "join" / "token").unlink()
    (pod / "harness" / "volume-id").write_text("no id!\n")
    shutil.rmtree(pod / "skills")
    environment = healthy(pod, core, egress)
    environment["NYLORUN_SANDBOX_BLOCKED_PROBE"] = core.url.removeprefix("http://")
    environment["NYLORUN_GATES_URL"] = f"http://127.0.0.1:{closed_port()}"
    environment["NYLORUN_EGRESS_PROXY"] = core.url
    environment["POD_HOST_SLOTS"] = "many"
    seen = await examine(environment)
    assert seen.code == 1
    failed = {(one["subject"], one["name"]) for one in seen.findings if one["state"] == "failure"}
    assert failed >= {
        ("environment", "POD_HOST_SLOTS"),
        ("join", "token"),
        ("network", "gates"),
        ("network", "policy"),
        ("disk", "skills"),
        ("disk", "volume id"),
    }
    assert seen.of("network", "egress proxy")[0] == "warning"
    assert seen.of("network", "Harness API")[0] == "ok"


async def test_directories_that_cannot_be_together_are_told_once_and_the_rest_is_looked_at(
    pod: Path, core: Core, egress: str
) -> None:
    environment = healthy(pod, core, egress) | {"POD_HOST_WORKSPACE_DIR": "/", "POD_HOST_SLOT": "4"}
    seen = await examine(environment)
    assert seen.code == 1
    failed = [(one["subject"], one["name"]) for one in seen.findings if one["state"] == "failure"]
    assert failed == [("environment", "POD_HOST_WORKSPACE_DIR")] * 2
    assert seen.of("environment", "misspelt") == (
        "warning",
        "POD_HOST_SLOT is no setting; did you mean POD_HOST_SLOTS?",
    )
    assert seen.of("disk", "host's directory")[0] == "ok"


async def test_anywhere_else_it_says_what_is_missing_and_looks_at_the_rest() -> None:
    seen = await examine({"PATH": os.environ["PATH"]})
    assert seen.code == 1
    assert seen.of("environment", "NYLORUN_SANDBOX_ID")[0] == "failure"
    assert {one["subject"] for one in seen.findings} >= {"disk", "kernel", "confinement", "clients"}


def test_a_table_and_data_say_the_same() -> None:
    findings = [Finding("disk", "workspace", "ok", "fine"), Finding("disk", "volume id", "failure", "gone")]
    assert as_table(findings) == (
        "disk\n  ok    workspace  fine\n  FAIL  volume id  gone\n\n1 failed, 0 warned, 1 well"
    )
    assert json.loads(as_json(findings))["findings"][1] == {
        "subject": "disk", "name": "volume id", "state": "failure", "says": "gone",
    }  # fmt: skip
    assert not is_well(findings)
    assert is_well(findings[:1])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
@pytest.mark.parametrize(
    ("credentials", "trusts", "says"),
    [
        (f"{USER}:wrong@", True, "uses the proxy, but the token does not arrive whole"),
        ("", True, "uses the proxy, but the token does not arrive whole"),
        ("good", False, "authenticates, but does not trust the CA"),
        ("good", True, "authenticates, and trusts the CA"),
        (None, True, "does not use the proxy"),
    ],
)
async def test_how_far_a_client_got_is_seen(credentials: str | None, trusts: bool, says: str) -> None:
    stage = Stage()
    await stage.open()
    host, port = stage.address
    if credentials == "good":
        credentials = f"{USER}:{TOKEN.replace('%', '%25').replace('/', '%2F').replace('@', '%40')}@"
    proxy = {} if credentials is None else {"https_proxy": f"http://{credentials}{host}:{port}"}
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "https://curl.doctor.invalid/",
        env={"PATH": os.environ["PATH"], **proxy, **({"CURL_CA_BUNDLE": str(CA)} if trusts else {})},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await process.wait()
    await stage.close()
    (curl,) = [client for client in CLIENTS if client.name == "curl"]
    finding = verdict(curl, "1.0", stage.seen.get("curl", Seen()), relay=False)
    assert finding.says == f"1.0: {says}"
    assert (finding.state == "ok") == (says == "authenticates, and trusts the CA")


def test_a_client_that_is_not_there_or_needs_the_relay_is_no_failure() -> None:
    (java,) = [client for client in CLIENTS if client.relay]
    assert verdict(java, None, Seen(), relay=True).state == "note"
    assert verdict(java, "17", Seen(), relay=False).state == "warning"
    assert version_in("git version 2.39.5 (x)\nmore") == "2.39.5"
    assert version_in("v8\nmore") == "v8"


def test_a_reader_that_stops_reading_ends_it_without_a_word() -> None:
    """``pod-host doctor | head``."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "pod_host", "doctor"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
