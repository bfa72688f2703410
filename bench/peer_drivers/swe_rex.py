"""swe-rex: its server on loopback and its own client. ``python swe_rex.py TEXT_FILE``"""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from driver import serve  # type: ignore[import-not-found]


async def main(path: Path, text: str) -> None:
    shapes: Any = import_module("swerex.runtime.abstract")
    remote: Any = import_module("swerex.runtime.remote")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    token = secrets.token_hex(8)
    command = [str(Path(sys.executable).with_name("swerex-remote")), "--host", "127.0.0.1"]
    server = subprocess.Popen(  # noqa: ASYNC220
        [*command, "--port", str(port), "--auth-token", token], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        runtime = remote.RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
        await runtime.wait_until_alive(timeout=30)
        await runtime.create_session(shapes.CreateBashSessionRequest())

        async def in_session(number: int) -> None:
            done = await runtime.run_in_session(shapes.BashAction(command="true"))
            assert done.exit_code == 0

        async def execute(number: int) -> None:
            done = await runtime.execute(shapes.Command(command=["bash", "-c", "true"]))
            assert done.exit_code == 0

        async def read(number: int) -> None:
            assert (await runtime.read_file(shapes.ReadFileRequest(path=str(path)))).content == text

        async def write(number: int) -> None:
            await runtime.write_file(shapes.WriteFileRequest(path=str(path), content=text))

        await serve({"true-session": in_session, "true-fresh": execute, "read": read, "write": write})
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    asyncio.run(main(file, file.read_text()))
