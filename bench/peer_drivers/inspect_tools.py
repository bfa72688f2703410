"""inspect-tool-support: its server by its socket, and its command, which is how Inspect calls it.
``python inspect_tools.py TEXT_FILE``"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from driver import serve  # type: ignore[import-not-found]

COMMAND = str(Path(sys.executable).with_name("inspect-tool-support"))


async def main(path: Path, text: str) -> None:
    os.environ["XDG_RUNTIME_DIR"] = str(path.parent)  # its socket; read as it is imported
    socket_path = path.parent / "inspect-tool-support.sock"
    socket_path.unlink(missing_ok=True)
    aiohttp: Any = import_module("aiohttp")
    server = subprocess.Popen([COMMAND, "server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        for _ in range(300):
            if socket_path.exists():
                break
            await asyncio.sleep(0.1)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(socket_path))) as client:

            async def ask(method: str, params: object) -> Any:
                request = {"jsonrpc": "2.0", "method": method, "id": 1, "params": params}
                async with client.post("http://tools/", json=request) as answer:
                    return (await answer.json(content_type=None))["result"]

            name = (await ask("bash_session_new_session", {}))["session_name"]

            async def in_session(number: int) -> None:
                """It tells no exit code: the shell has to. It answers once the terminal has been still for the least time."""
                waits = {"wait_for_output": 5, "idle_timeout": 0.001}
                shown = ""
                params = {"session_name": name, "input": f"true; echo done$?-{number}\n", **waits}
                while f"done0-{number}" not in shown:
                    shown += await ask("bash_session", params)
                    params = {"session_name": name, **waits}

            def call(params: dict[str, object]) -> None:
                request = {"jsonrpc": "2.0", "method": "text_editor", "id": 1, "params": params}
                done = subprocess.run([COMMAND, "exec"], input=json.dumps(request), capture_output=True, text=True)
                assert "result" in json.loads(done.stdout), done

            async def read(number: int) -> None:
                call({"command": "view", "path": str(path)})

            async def write(number: int) -> None:
                """It writes new files alone."""
                call({"command": "create", "path": str(path.with_name(secrets.token_hex(8))), "file_text": text})

            await serve({"true-session": in_session, "read": read, "write": write})
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    asyncio.run(main(file, file.read_text()))
