"""The host as a child: what it is given, what is read of it, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pod_host.contract.base import JsonObject
from pod_host.dev.agent import Agent
from pod_host.dev.directories import Directories
from pod_host.dev.host_process import HostProcess, entry_point, launch_environment
from pod_host.settings import Settings

HERE = Path("/nowhere")
AT = Directories(HERE / "workspace", HERE / "harness", HERE / "skills", HERE / "runtime", fresh=True)


def runtime() -> Any:
    return SimpleNamespace(
        sandbox_id="sbx_1",
        join_file=HERE / "join" / "token",
        harness_url="http://127.0.0.1:1",
        gates_url="http://127.0.0.1:2",
        egress_url="http://127.0.0.1:3",
    )


class Told:
    """The events of a child's log; a test can wait for one."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[JsonObject] = asyncio.Queue()

    async def next(self) -> str:
        return cast(str, (await self.queue.get())["event"])


async def child(script: str, told: Told) -> HostProcess:
    environment = {"PATH": os.environ["PATH"]}
    return await HostProcess.start(environment, told.queue.put_nowait, [sys.executable, "-u", "-c", script])


def test_the_launch_contract_is_whole_and_holds_nothing_of_the_persons() -> None:
    person = {
        "PATH": "/bin",
        "LANG": "C",
        "LC_ALL": "C",
        "HOME": "/home/me",
        "OPENAI_API_KEY": "secret",
        "HTTPS_PROXY": "x",
    }
    environment = launch_environment(runtime(), Agent("a", harness_id="mine"), AT, person)
    settings = Settings.read(environment)
    assert settings.harness_id == "mine"
    assert settings.workspace_dir == AT.workspace
    assert settings.network_gate is False
    assert settings.egress_proxy == "http://127.0.0.1:3"
    assert environment["HOME"] == "/home/me"  # the host hides it; the commands get another
    assert {"PATH", "LANG", "LC_ALL"} <= environment.keys()
    assert not {"OPENAI_API_KEY", "HTTPS_PROXY"} & environment.keys()


def test_a_checkout_starts_it_through_its_entry_point() -> None:
    shell, script = entry_point()
    assert shell == "/bin/sh"
    assert Path(script).name == "entrypoint.sh"
    assert os.access(script, os.R_OK)


async def test_its_log_is_read_and_its_end_told_with_the_last_lines() -> None:
    told = Told()
    lines = [json.dumps({"event": f"e{number}"}) for number in range(20)]
    host = await child(
        f"import sys\nfor line in {lines!r}: print(line, file=sys.stderr)\nprint('no JSON', file=sys.stderr)\nsys.exit(3)",
        told,
    )
    code = await host.ended()
    assert code == 3
    first, *last = host.epitaph(code)
    assert first.startswith("the host ended with exit code 3")
    assert last == [*lines[-7:], "no JSON"]
    assert [await told.next() for _ in range(20)] == [f"e{number}" for number in range(20)]
    await host.stop()


async def test_it_is_asked_to_end_and_given_time() -> None:
    told = Told()
    script = (
        "import signal, sys\n"
        'def end(*_):\n    print(\'{"event": "leaving"}\', file=sys.stderr)\n    sys.exit(0)\n'
        "signal.signal(signal.SIGTERM, end)\n"
        'print(\'{"event": "ready"}\', file=sys.stderr)\n'
        "signal.pause()"
    )
    host = await child(script, told)
    assert await told.next() == "ready"
    stopping = asyncio.create_task(host.stop())
    assert await told.next() == "leaving"
    await stopping
    assert await host.exit_code() == 0


async def test_one_that_does_not_end_is_killed_with_its_group(monkeypatch: Any) -> None:
    monkeypatch.setattr("pod_host.dev.host_process.STOP_SECONDS", 0.2)
    told = Told()
    script = (
        "import json, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(json.dumps({'event': str(child.pid)}), file=sys.stderr)\n"
        "signal.pause()"
    )
    host = await child(script, told)
    grandchild = int(await told.next())
    descriptor = os.pidfd_open(grandchild)
    try:
        await host.stop()
        assert await host.exit_code() == -signal.SIGKILL
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, ended.set)
        await ended.wait()
        asyncio.get_running_loop().remove_reader(descriptor)
    finally:
        os.close(descriptor)
