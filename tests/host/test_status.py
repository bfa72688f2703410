"""`pod-host status`: what it tells of a real host, and to whom."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pod_host.cli import main
from pod_host.host.status import COOKIE, SOCKET, Connected, Joined, NoStatus, Status, Worker, read_status
from tests.host.conftest import StartHost
from tests.host.core import Core


async def ask(pod: Path, *options: str) -> tuple[int, str, str]:
    """The command, as somebody beside the host gives it."""
    asking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pod_host", "status", *options),
        env={"PATH": os.environ["PATH"], "POD_HOST_HARNESS_DIR": str(pod / "harness")},
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asking.communicate()
    assert asking.returncode is not None
    return asking.returncode, out.decode(), err.decode()


def talk(harness: Path, sent: bytes) -> bytes:
    """What the socket answers to these bytes. (By a short path: the directory's own may be too long for a socket.)"""
    descriptor = os.open(harness, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(30)  # a host that says nothing fails the test
        asking.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
        asking.sendall(sent)
        asking.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: asking.recv(65536), b""))
    os.close(descriptor)
    return answer


async def test_a_connected_host_tells_how_it_is(start_host: StartHost, core: Core, pod: Path) -> None:
    host = await start_host()
    await (await core.connected()).asked("lease")
    code, out, _ = await ask(pod, "--json")
    told: dict[str, Any] = json.loads(out)
    assert code == 0
    assert (told["sandboxId"], told["podUid"], told["harnessId"]) == ("sbx", "pod-uid-1", "pod-host")
    assert told["phase"] == "connected"
    assert told["joined"]["epoch"] == 1
    assert 0 < told["joined"]["tokenLife"] <= 15 * 60
    assert 0 < told["joined"]["nextRenewal"] <= 300
    assert told["connected"]["tenantId"] == "t"
    assert (told["runs"], told["slots"]) == ([], 8)
    assert told["worker"]["alive"] is True
    assert told["setupNote"] is None
    secrets = [(pod / "harness" / COOKIE).read_text(), "join-token-1"]
    code, out, _ = await ask(pod)
    assert code == 0
    assert not [secret for secret in secrets if secret in out + json.dumps(told)]
    assert [line.split()[0] for line in out.splitlines()] == [
        "host", "sandbox", "phase", "joined", "connected", "runs", "worker", "shares"
    ]  # fmt: skip
    host.terminate()
    assert await host.ended() == 0
    assert not (pod / "harness" / SOCKET).exists()


async def test_a_host_that_cannot_join_says_so(start_host: StartHost, core: Core, pod: Path) -> None:
    core.on_join = lambda body: 401
    host = await start_host()
    await host.event("join.refused")
    code, out, _ = await ask(pod, "--json")
    told = json.loads(out)
    assert code == 1
    assert (told["phase"], told["joined"], told["connected"]) == ("joining", None, None)
    assert told["worker"]["alive"] is True
    code, out, _ = await ask(pod)
    assert code == 1
    assert "joined     no" in out


async def test_a_host_at_its_network_gate_answers_already(start_host: StartHost, pod: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        host = await start_host(POD_HOST_NETWORK_GATE="on", NYLORUN_SANDBOX_BLOCKED_PROBE=address)
        await host.event("gate.open")
        _, out, _ = await ask(pod, "--json")
    told = json.loads(out)
    assert told["phase"] == "network gate"
    assert told["worker"] == {"alive": False, "pid": 0, "landlockAbi": 0, "holds": [], "shares": [], "processes": 0}


@pytest.mark.parametrize("sent", [b"", b"x" * 64, b"GET / HTTP/1.1\r\n\r\n" * 8, b"x"])
async def test_without_the_cookie_nothing_is_told(start_host: StartHost, core: Core, pod: Path, sent: bytes) -> None:
    await start_host()
    await core.connected()
    assert await asyncio.to_thread(talk, pod / "harness", sent) == b""
    cookie = pod / "harness" / COOKIE
    assert stat.S_IMODE(cookie.stat().st_mode) == 0o600
    assert await asyncio.to_thread(talk, pod / "harness", cookie.read_bytes())


async def test_a_command_hears_nothing(start_host: StartHost, core: Core, pod: Path) -> None:
    host = await start_host()
    connection = await core.connected()
    started = await host.event("worker.started")
    if "files" not in started["holds"] and os.geteuid() != 0:
        pytest.skip("this kernel hides no files, and the command is the host's own user")
    program = (
        "import os,socket; s=socket.socket(socket.AF_UNIX); s.settimeout(20); "
        f"os.chdir({str(pod / 'harness')!r}); s.connect({SOCKET!r}); s.sendall(b'x'*64); print(s.recv(9))"
    )
    answer = await connection.ask(
        "workspace.exec",
        {
            "session": {"ownerId": "session-1", "activeTurnId": None},
            "tool": "bash",
            "input": {"command": f'cat {pod}/harness/{COOKIE}; python3 -c "{program}"'},
        },
    )
    output = answer["r"]["output"]
    assert (pod / "harness" / COOKIE).read_text() not in json.dumps(answer)
    assert "denied" in output["stderr"]
    assert output["stdout"] in ("b''\n", "")  # it may connect, or may not even that


async def test_many_connections_that_say_nothing_do_not_keep_others_out_for_long(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    await start_host()
    await core.connected()
    silent = []
    descriptor = os.open(pod / "harness", os.O_PATH)
    for _ in range(100):
        made = socket.socket(socket.AF_UNIX)
        made.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
        silent.append(made)
    os.close(descriptor)
    async with asyncio.timeout(60):
        while (await ask(pod))[0] != 0:
            pass  # each asks in a process of its own, which takes its time
    for made in silent:
        made.close()


async def test_a_directory_that_is_not_there_yet_is_made_and_has_status(
    start_host: StartHost, core: Core, pod: Path
) -> None:
    (pod / "harness").rmdir()
    await start_host()
    await core.connected()
    assert (await ask(pod))[0] == 0


def test_without_a_host_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("POD_HOST_HARNESS_DIR", str(tmp_path))
    assert main(["status"]) == 1
    assert capsys.readouterr().err == f"pod-host: no host runs on {tmp_path}, which is POD_HOST_HARNESS_DIR\n"
    with socket.socket(socket.AF_UNIX) as left:  # by a host that was killed
        left.bind(str(tmp_path / SOCKET))
    (tmp_path / COOKIE).write_text("x" * 64)
    with pytest.raises(NoStatus, match="no host runs on"):
        read_status(tmp_path)


def test_a_directory_that_is_named_wrongly_is_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_HOST_HARNESS_DIR", "harness")
    assert main(["status", "--json"]) == 78
    assert "POD_HOST_HARNESS_DIR is 'harness'" in capsys.readouterr().err


def test_the_table_is_for_people() -> None:
    status = Status(
        version="0.1.0",
        sandbox_id="net/one",
        pod_uid="6d4b",
        harness_id="pod-host",
        phase="connected",
        up_seconds=7384.2,
        joined=Joined(epoch=3, last_renewal=42.4, next_renewal=257.6, token_life=857.6),
        connected=Connected(tenant_id="tnt_1", seconds=59.6),
        runs=("run_1", "run_2"),
        slots=8,
        worker=Worker(alive=True, pid=10, landlock_abi=7, holds=("files", "signals"), processes=2),
        setup_note="The setup of this sandbox failed.\nIts output: …",
    )
    assert status.table().splitlines() == [
        "host       pod-host 0.1.0, up for 2 h 3 min; harness pod-host",
        "sandbox    net/one, pod 6d4b",
        "phase      connected",
        "joined     yes, epoch 3; tokens came 42 s ago and live 14 min more; renewed in 4 min",
        "connected  for 1 min, tnt_1",
        "runs       2 of 8, run_1, run_2",
        "worker     alive, pid 10, 2 processes of commands; the kernel protects files and signals (Landlock ABI 7)",
        "shares     none: no controller is delegated",
        "setup      The setup of this sandbox failed.",
    ]


def test_the_table_names_what_the_commands_cgroup_holds() -> None:
    worker = Worker(alive=True, pid=10, landlock_abi=7, holds=("files",), shares=("cpu", "memory"))
    status = Status(
        version="0.1.0",
        sandbox_id="s",
        pod_uid="p",
        harness_id="pod-host",
        phase="joining",
        up_seconds=1,
        joined=None,
        connected=None,
        runs=(),
        slots=8,
        worker=worker,
        setup_note=None,
    )
    assert "shares     cgroup, cpu, memory" in status.table().splitlines()
