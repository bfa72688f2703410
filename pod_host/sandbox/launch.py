"""A worker's process, started and not yet told what to do. It can be launched before all else that the host does at its
start: it then gets ready meanwhile, on another core."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

# -I and -S: nothing of the environment or of site-packages; the worker needs the standard library and this package.
_BOOT: Final = (
    "import sys; sys.path.append(sys.argv[2]); from pod_host.sandbox.worker.main import main; main(int(sys.argv[1]))"
)
_ROOT: Final = str(Path(__file__).resolve().parents[2])


class Launched:
    """Belongs to whoever takes it. A process that nobody took goes when `end` is called, or with us."""

    def __init__(self, process: subprocess.Popen[bytes], peer: socket.socket) -> None:
        self._process = process
        self._peer = peer
        self._taken = False

    def take(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """The process, and our end of its socket. Once."""
        assert not self._taken
        self._taken = True
        return self._process, self._peer

    def end(self) -> None:
        """If nobody took it. It has done nothing yet, so nothing is left of it."""
        if not self._taken:
            self._peer.close()
            self._process.kill()
            self._process.wait()
            self._taken = True


def launch() -> Launched:
    """Starts a worker. Nothing secret is in its arguments or its environment. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, str(theirs.fileno()), _ROOT],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
                start_new_session=True,  # a ^C at the host's terminal is not for it
            )
        except OSError:
            ours.close()
            raise
    return Launched(process, ours)
