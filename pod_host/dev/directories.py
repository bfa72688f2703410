"""Where a run of ``pod-host dev`` keeps its files: a workspace, and beside it what no command may see.

Without ``--keep`` all of it is a fresh directory that goes at the end. With it, the workspace is the person's, and the
state of host and Runtime lies elsewhere, found again by the workspace's path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pod_host.errors import ConfigurationError
from pod_host.limits import SANDBOX_UID

ROOT_STATE: Final = Path("/var/lib/pod-host/dev")
TRAVERSABLE: Final = 0o711  # the commands' user passes through on its way to HOME, and lists nothing


@dataclass(frozen=True)
class Directories:
    """``fresh``: nothing was there before, so that the host joins with a new volume."""

    workspace: Path
    harness: Path
    skills: Path
    runtime: Path
    fresh: bool


@contextlib.contextmanager
def temporary() -> Iterator[Directories]:
    """All of it in one new directory, removed at the end."""
    # Not in /tmp: nothing can be made in the directory of a hidden one, and commands need /tmp.
    base = Path(tempfile.mkdtemp(prefix="pod-host-dev-", dir="/var/tmp")).resolve()
    try:
        base.chmod(TRAVERSABLE)
        workspace = base / "workspace"
        workspace.mkdir()
        _give(workspace)
        yield _state(base, workspace, fresh=True)
    finally:
        _remove(base)


@contextlib.contextmanager
def kept(given: Path, environ: Mapping[str, str]) -> Iterator[Directories]:
    """``given`` is the workspace. Raises ConfigurationError when it cannot be one, or another run has it."""
    workspace = given.expanduser().absolute()
    try:
        if not workspace.exists():
            workspace.mkdir(parents=True)
            _give(workspace)
        workspace = workspace.resolve(strict=True)
    except OSError as fault:
        raise ConfigurationError([f"--keep: {workspace}: {fault.strerror}"]) from None
    if not workspace.is_dir():
        raise ConfigurationError([f"--keep: {workspace} is not a directory"])
    state = state_of(workspace, environ)
    if state.is_relative_to(workspace):
        raise ConfigurationError(
            [f"--keep: {workspace} holds pod-host's own state ({state.parent}); choose a directory that does not"]
        )
    _check_writable(workspace)
    fresh = not (state / "runtime").exists()
    try:
        _make(state)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise ConfigurationError([f"{state}: {fault.strerror}"]) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield _state(state, workspace, fresh=fresh)
    except BlockingIOError:
        raise ConfigurationError([f"--keep: another pod-host dev has {workspace}; end it first"]) from None
    finally:
        os.close(lock)


def state_of(workspace: Path, environ: Mapping[str, str]) -> Path:
    """Where the state of the runs on ``workspace`` (a real path) lies."""
    name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
    if os.geteuid() == 0:
        return ROOT_STATE / name  # the commands' user must pass through, and cannot through root's home
    home = environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return (base / "pod-host" / "dev").resolve() / name


def _state(base: Path, workspace: Path, *, fresh: bool) -> Directories:
    directories = Directories(workspace, base / "harness", base / "skills", base / "runtime", fresh)
    for path, mode in ((directories.harness, TRAVERSABLE), (directories.skills, 0o755), (directories.runtime, 0o700)):
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    _give(directories.skills)
    return directories


def _make(state: Path) -> None:
    state.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        for path in (state, *state.parents[:2]):
            path.chmod(TRAVERSABLE)
    else:
        state.chmod(0o700)


def _give(path: Path) -> None:
    """To the user that runs the commands: another one, when we are root."""
    if os.geteuid() == 0:
        os.chown(path, SANDBOX_UID, SANDBOX_UID)


def _check_writable(workspace: Path) -> None:
    """As the commands' user sees it, each directory on the way included."""
    root = os.geteuid() == 0
    identity: dict[str, Any] = {"user": SANDBOX_UID, "group": SANDBOX_UID, "extra_groups": []} if root else {}
    test = ["/bin/sh", "-c", 'test -w "$1" && test -x "$1" && test -r "$1"', "sh", str(workspace)]
    if subprocess.run(test, cwd="/", stdin=subprocess.DEVNULL, **identity).returncode:
        uid = SANDBOX_UID if root else os.geteuid()
        mend = f"choose another, or let uid {uid} write to it and pass through the directories above it"
        raise ConfigurationError(
            [f"--keep: {workspace} is not writable for uid {uid}, which runs the commands; {mend}"]
        )


def _remove(base: Path) -> None:
    """Commands leave directories without write permission (a module cache does): give it back and go on."""

    def again(function: Callable[[str], Any], path: str, fault: Any) -> None:
        with contextlib.suppress(OSError):
            for one in (os.path.dirname(path), path):
                if not os.path.islink(one):
                    os.chmod(one, stat.S_IRWXU)
            if function in (os.rmdir, os.unlink):
                function(path)
            else:
                shutil.rmtree(path, ignore_errors=True)

    shutil.rmtree(base, onerror=again)
