"""What a host does not wait for before its first turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.host.conftest import StartHost
from tests.host.core import Core

NEEDLESS = {
    *("argparse", "certifi", "difflib", "jsonschema"),
    *("anyio._backends._asyncio", "httpcore", "rich", "click"),
    *("pod_host.sandbox.tools.running", "pod_host.sandbox.tools.grep", "pod_host.sandbox.worker"),
}
LOOK = """
import sys
import pod_host.cli, pod_host.host, pod_host.client, pod_host.host.life, pod_host.host.turns
print(*sorted(sys.modules))
"""


def test_what_no_start_needs_is_not_imported() -> None:
    names = subprocess.run([sys.executable, "-c", LOOK], check=True, capture_output=True, text=True).stdout.split()
    assert "pod_host.turn.loop" in names
    assert NEEDLESS.isdisjoint(names)


async def test_what_the_host_sets_for_itself_reaches_no_command(start_host: StartHost, core: Core, pod: Path) -> None:
    await start_host(PYDANTIC_OF_THE_IMAGE="kept")
    connection = await core.connected()
    call = {
        "session": {"ownerId": "one", "activeTurnId": None},
        "spec": {},
        "tool": "bash",
        "input": {"command": "env"},
    }
    answer = await connection.ask("workspace.exec", call)
    told = [line for line in answer["r"]["output"]["stdout"].splitlines() if line.startswith("PYDANTIC")]
    assert told == ["PYDANTIC_OF_THE_IMAGE=kept"]
