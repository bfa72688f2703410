"""An Agent's setup: read, recorded, and its files put in place. Nothing is written but below the workspace."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

from pod_host.contract.base import JsonObject
from pod_host.contract.encoding import decode
from pod_host.contract.open_points import SetupCommand, SetupFault, SetupFile, read_setup
from pod_host.errors import ContractViolation
from pod_host.host import setup_record
from pod_host.host.setup import Setup
from pod_host.sandbox import AppendLog, Command, Completed, Outcome, PutFile, Request, frames
from pod_host.sandbox.requests import encode_request
from pod_host.sandbox.worker.files import FileOperations
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source

GOOD: JsonObject = {
    "files": [
        {"path": "a/b.txt", "content": "text", "mode": "0640"},
        {"path": "c", "base64": "AAEC", "executable": True},
        {"path": "out/d/e", "content": ""},
    ],
    "commands": [
        {"command": "make", "cwd": "a", "env": {"A": "b"}, "timeoutMs": 1000, "name": "build"},
        {"run": "true", "timeout": 2.5},
        "ls",
    ],
}


class Worker:
    """The worker's own file operations; commands are not run, but cross as they would."""

    def __init__(self, operations: FileOperations) -> None:
        self._operations = operations

    async def ask(self, request: Request) -> Outcome:
        header, body = encode_request(request)
        frames.encode({**header, "id": 1}, body)
        match request:
            case PutFile(_, path, content, mode):
                return self._operations.put(path, content, mode)
            case AppendLog(_, path, text):
                return self._operations.append(path, text)
            case Command(timeout_seconds=seconds):
                assert 0 < seconds < math.inf
                return Completed({"exitCode": 0, "stdout": "", "stderr": ""})
            case other:
                raise AssertionError(other)


def run(source: Source) -> None:
    try:
        setup = decode(hostile.json_text(source, GOOD))
    except ContractViolation:
        return
    steps = read_setup(setup)
    assert all(isinstance(step, SetupFile | SetupCommand | SetupFault) for step in steps)
    with tempfile.TemporaryDirectory(prefix="pod-host-fuzz-") as directory, loop.no_bugs():
        root = Path(directory)
        for name in ("workspace", "home", "harness", "outside"):
            (root / name).mkdir()
        (root / "workspace" / "out").symlink_to("../outside")
        os.chmod(root / "outside", 0o755)
        loop.run(_run(root, setup, seeded=source.below(8) == 1))
        assert {entry.name for entry in root.iterdir()} == {"workspace", "home", "harness", "outside"}
        assert not list((root / "outside").iterdir()), "a link led out of the workspace"
        assert {entry.name for entry in (root / "harness").iterdir()} <= {setup_record.NAME}


async def _run(root: Path, setup: Any, seeded: bool) -> None:
    worker: Any = Worker(FileOperations(str(root / "workspace"), str(root / "home")))
    hosted = Setup(root / "harness", root / "workspace", worker, lambda env: dict(env))
    await hosted.offer(setup, seeded)
    await hosted.settle()
    note = hosted.note
    if note is not None:
        note.encode()
        assert len(note) < 8000
