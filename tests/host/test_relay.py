"""The relay's process: its port, its token, its end, and what of it commands can reach."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pod_host.host.relay import Relay
from pod_host.sandbox import kernel
from tests.host.conftest import StartHost
from tests.host.core import Connection, Core
from tests.sandbox.conftest import alive, eventually, remains

WAIT = 20.0


class Egress:
    """Takes requests, notes their tokens, and serves none."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[str] = asyncio.Queue()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        credentials = head.partition(b"Proxy-Authorization: Basic ")[2].partition(b"\r\n")[0]
        self.tokens.put_nowait(base64.b64decode(credentials).decode())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\nno\n")
        writer.close()


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    made = Egress()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()


@pytest.fixture
async def relay(egress: Egress) -> AsyncIterator[Relay]:
    made = Relay(egress.url, "nylorun")
    await made.start()
    yield made
    await made.stop()


async def status(relay: Relay) -> int:
    """Of a request through it."""
    host, _, port = relay.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(-1), WAIT)
    writer.close()
    return int(answer.split()[1])


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def pid_of(relay: Relay) -> int:
    assert relay._process is not None
    return relay._process.pid


async def test_once_started_its_process_is_there_and_confined(relay: Relay) -> None:
    """The worker, which starts next, keeps commands from the threads that are there."""
    told = status_of(pid_of(relay))
    assert "\nNoNewPrivs:\t1\n" in told
    assert "\nThreads:\t1\n" in told


async def test_one_that_cannot_start_holds_nothing_up(egress: Egress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pod_host.host.relay.sys.executable", "/nonexistent/python")
    made = Relay(egress.url, "nylorun")
    async with asyncio.timeout(WAIT):
        await made.start()
    assert made._process is None
    await made.stop()


async def test_it_adds_the_token_of_the_moment(relay: Relay, egress: Egress) -> None:
    waiting = asyncio.create_task(status(relay))  # a client that comes before there is a token waits
    for token in ("first+/=%41@:", "second"):
        relay.authorize(token)
        async with asyncio.timeout(WAIT):
            while await status(relay) != 403 or egress.tokens.get_nowait() != f"nylorun:{token}":
                pass
    assert await waiting == 403


async def test_killed_it_comes_back_on_the_same_port_with_the_token(relay: Relay, egress: Egress) -> None:
    relay.authorize("token")
    url = relay.url
    assert await status(relay) == 403
    first = pid_of(relay)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(WAIT):
        while True:
            try:
                assert await status(relay) == 403
            except (OSError, IndexError):  # the dead one's: it went with the connection
                continue
            break
    assert pid_of(relay) != first
    assert relay.url == url


async def test_it_ends_with_the_host_and_leaves_no_port(egress: Egress) -> None:
    relay = Relay(egress.url, "nylorun")
    await relay.start()
    relay.authorize("token")
    assert await status(relay) == 403
    pid, port = pid_of(relay), int(relay.url.rpartition(":")[2])
    await relay.stop()
    assert not remains(pid)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_nothing_of_it_can_be_read_by_its_own_user(relay: Relay) -> None:
    relay.authorize("token")
    assert await status(relay) == 403
    assert_closed_to_its_user(pid_of(relay))


def assert_closed_to_its_user(pid: int) -> None:
    user = Path(f"/proc/{pid}/status").read_text().partition("\nUid:\t")[2].split()[0]
    assert user == ("65534" if os.geteuid() == 0 else str(os.geteuid()))
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0  # of a process that cannot be dumped: not its user's
    identity: dict[str, Any] = {"user": int(user), "group": int(user), "extra_groups": []} if os.geteuid() == 0 else {}
    for name in ("environ", "mem", "fd/3"):
        looked = subprocess.run(["cat", f"/proc/{pid}/{name}"], capture_output=True, **identity)
        assert looked.returncode != 0
        assert b"ermission denied" in looked.stderr
    assert b"Basic" not in Path(f"/proc/{pid}/cmdline").read_bytes()


CONFINED = """
import os, signal, sys
from pod_host.relay.main import confine
confine({uid})
for number, attempt in enumerate((
    lambda: open("/etc/passwd"),
    lambda: open("/tmp/relay-was-here", "w"),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.kill(os.getppid(), 0),
    lambda: os.listdir("/"),
)):
    try:
        attempt()
    except PermissionError:
        print(number, end=" ")
"""


@pytest.mark.skipif(kernel.landlock_abi() < 6, reason="the kernel's Landlock does not scope signals")
def test_confined_it_opens_no_file_starts_no_program_and_signals_nobody() -> None:
    script = CONFINED.format(uid=65534 if os.geteuid() == 0 else None)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ran.stdout.split() == ["0", "1", "2", "3", "4"], ran.stderr


async def bash(connection: Connection, command: str) -> str:
    answer = await connection.ask(
        "workspace.exec",
        {
            "session": {"ownerId": "session-1", "activeTurnId": None},
            "spec": {},
            "tool": "bash",
            "input": {"command": command},
        },
    )
    output = answer["r"]["output"]
    return str(output["stdout"] + output["stderr"])


async def test_commands_get_the_relay_and_no_token_and_cannot_reach_into_it(start_host: StartHost, core: Core) -> None:
    host = await start_host(POD_HOST_EGRESS="relay")
    started = await host.event("relay.started")
    connection = await core.connected()
    pid = started["pid"]
    said = await bash(connection, "env")
    assert f"HTTPS_PROXY={started['url']}\n" in said
    assert "egress-1-" not in said
    said = await bash(
        connection,
        f"cat /proc/{pid}/environ; cat /proc/{pid}/mem; ls /proc/{pid}/fd; kill -9 {pid}; prlimit -p {pid} --cpu=1",
    )
    assert "ermission denied" in said
    assert "not permitted" in said
    said = await bash(
        connection,
        "curl -sS http://a.test/ || true; exec 3<>/dev/tcp/127.0.0.1/${https_proxy##*:}; "
        "printf 'CONNECT a.test:443 HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3",
    )
    assert "the egress proxy cannot be connected to" in said  # nothing listens there; and the relay lives
    assert "egress-1-" not in host.log
    host.terminate(signal.SIGKILL)
    await host.ended()
    await eventually(lambda: not alive(pid))  # whoever reaps it
