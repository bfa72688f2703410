"""Commands in a cgroup of their own, where one is delegated to us. Version 2 alone.

    <base>              what we were started in; its controllers are on for what is below
    ├── host            host, worker, relay, and whoever else was in base: only leaves may hold processes
    └── commands        limits and weights, for all commands together
        └── <random>    one worker's zygote, and so whatever it starts: ended as one by ``cgroup.kill``

A cgroup is delegated when it is a container's own (the root of our cgroup namespace, not the machine's) or bears the mark
of a service manager (systemd's ``Delegate=yes``), and when we may in fact use it. That we may write there says nothing by
itself: root may everywhere.

The worker makes it, before it drops to the commands' user, and keeps two descriptors open; the zygote enters by one of
them before all else, so that no command is ever outside. The host, whom no Landlock holds, takes it away again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pod_host import limits

CONTROLLERS: Final[tuple[str, ...]] = ("cpu", "io", "memory", "pids")
_HOST: Final = "host"
_COMMANDS: Final = "commands"
_MARKS: Final = ("user.delegate", "trusted.delegate")  # systemd's; the second is for root to see
_MOVES: Final = 10  # passes over the processes of a cgroup, which fork while they are moved
_LOOKS: Final = 100  # whether what was killed is gone
_LOOK_SECONDS: Final = 0.01
_UNLIMITED: Final = "max"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """``path`` as in /proc/self/cgroup. ``directory``: where it is mounted; ``mount``: the mount's own directory."""

    path: str
    directory: str
    mount: str


def own_cgroup(proc: str = "/proc/self") -> Cgroup | None:
    """What this process is in. None without version 2, or where it is not mounted."""
    with contextlib.suppress(OSError), open(f"{proc}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if line.startswith("0::/") and not line.startswith("0::/.."):  # the latter: outside of our namespace
                path = line[3:].rstrip("\n")
                for root, mount in _mounts(proc):
                    below = root.rstrip("/")
                    if path == root or path.startswith(f"{below}/"):
                        return Cgroup(path, f"{mount}{path[len(below) :]}".rstrip("/"), mount)
    return None


def mounts(proc: str = "/proc/self") -> list[str]:
    """Every directory where a part of the hierarchy is mounted."""
    return [mount for _, mount in _mounts(proc)]


def _mounts(proc: str) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError), open(f"{proc}/mountinfo", "rb") as file:
        for line in file:
            fields, _, kind = line.partition(b" - ")
            if kind.startswith(b"cgroup2 "):
                root, mount = (
                    os.fsdecode(part.decode("unicode_escape").encode("latin-1")) for part in fields.split(b" ")[3:5]
                )
                yield root, mount


def least_limit(own: Cgroup, *names: str) -> int | None:
    """The least of these limits, of ``own`` and of what is above it as far as we see."""
    found = []
    directory = own.directory
    while directory.startswith(own.mount):
        found += [int(text) for name in names if (text := _read(f"{directory}/{name}")) not in ("", _UNLIMITED)]
        directory = os.path.dirname(directory)
    return min(found, default=None)


def delegated(own: Cgroup) -> Cgroup | None:
    """The base, when it is delegated to whoever is in ``own``; that we may use it is not looked at."""
    base = _base(own)
    if _read(f"{base.directory}/cgroup.type") != "domain":
        return None  # the machine's own root has no type
    established = base != own
    return base if established or base.path == "/" or _is_marked(base.directory) else None


def _base(own: Cgroup) -> Cgroup:
    """``own`` itself, or what is above it when it is a leaf that we made."""
    parent, name = os.path.split(own.directory)
    if name != _HOST or not os.path.isdir(f"{parent}/{_COMMANDS}"):
        return own
    return Cgroup(os.path.dirname(own.path), parent, own.mount)


def _is_marked(directory: str) -> bool:
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, mark) == b"1":
                return True
    return False


class Leaf:
    """One worker's commands. ``controllers``: those whose limits hold."""

    def __init__(self, directory: str, controllers: list[str]) -> None:
        """Raises OSError."""
        self.directory = directory
        self.controllers = controllers
        with contextlib.ExitStack() as stack:

            def opened(path: str, flags: int) -> int:
                descriptor = os.open(path, flags | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                return descriptor

            self._lock = opened(directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # while it is held, the leaf is no leftover
            self.entrance = opened(f"{directory}/cgroup.procs", os.O_WRONLY)
            self._kill: int | None = None
            with contextlib.suppress(FileNotFoundError):  # a kernel before 5.14
                self._kill = opened(f"{directory}/cgroup.kill", os.O_WRONLY)
            stack.pop_all()

    def kill(self) -> None:
        """SIGKILL to all in it at once: none can fork away."""
        if self._kill is not None:
            with contextlib.suppress(OSError):
                os.write(self._kill, b"1")

    def lets_in(self, uid: int | None) -> bool:
        """Whether a process of this user may enter by the descriptor. A child tries it: older kernels ask who writes,
        not who opened."""
        pid = os.fork()
        if pid == 0:
            try:
                if uid is not None:
                    os.setresuid(uid, uid, uid)
                os.write(self.entrance, b"0")
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(pid, 0)[1] == 0

    def writable_by(self, uid: int) -> bool:
        """By its mode bits, or those of what is above it."""
        base = os.path.dirname(os.path.dirname(self.directory))
        return any(
            os.stat(path).st_uid == uid for path in (base, f"{base}/cgroup.procs", f"{self.directory}/cgroup.procs")
        )

    def close(self) -> None:
        for descriptor in (self._lock, self.entrance, self._kill):
            if descriptor is not None:
                os.close(descriptor)


def prepare(uid: int | None) -> Leaf | None:
    """A new leaf for the commands of a worker that will become ``uid`` (None: stays who it is). None where nothing is
    delegated, or something there cannot be done: then all is as it was."""
    own = own_cgroup()
    if own is None:
        return None
    _open_up(os.path.dirname(own.directory), own.directory)
    base = delegated(own)
    if base is None:
        return None
    leaf = None
    try:
        leaf = _prepared(base)
        if leaf.lets_in(uid):
            return leaf
    except OSError:
        pass
    if leaf is not None:
        leaf.close()
        _remove(leaf.directory)
    _release(base.directory)
    return None


def _prepared(base: Cgroup) -> Leaf:
    directory = base.directory
    commands = f"{directory}/{_COMMANDS}"
    _make(commands)
    os.close(_opened(f"{directory}/cgroup.procs", os.O_WRONLY))  # who moves between its leaves must be able to write it
    wanted = [name for name in CONTROLLERS if name in _read(f"{directory}/cgroup.controllers").split()]
    if missing := set(wanted) - set(_read(f"{directory}/cgroup.subtree_control").split()):
        _make(f"{directory}/{_HOST}")
        _move_all(directory, f"{directory}/{_HOST}")
        for name in sorted(missing):
            with contextlib.suppress(OSError):  # the others are worth having without it
                _write(f"{directory}/cgroup.subtree_control", f"+{name}")
    held = [name for name in wanted if name in _read(f"{commands}/cgroup.controllers").split()]
    for name, value in shares(base, held):
        with contextlib.suppress(FileNotFoundError):  # io.weight is not on every kernel
            _write(f"{commands}/{name}", value)
    _end_leftovers(commands)
    leaf = f"{commands}/{secrets.token_hex(4)}"
    _make(leaf)
    try:
        return Leaf(leaf, held)
    except OSError:
        _remove(leaf)
        raise


def shares(base: Cgroup, controllers: Sequence[str]) -> list[tuple[str, str]]:
    """What the files of ``commands`` are to hold. Host and worker keep a reserve of what base may have, where it has a
    limit, so that commands meet theirs first; a weight counts only while there is too little for all."""
    wanted = []
    if "memory" in controllers:
        most = least_limit(base, "memory.max", "memory.high")
        if most is not None:
            wanted.append(("memory.max", str(most - min(limits.HOST_MEMORY_BYTES, most // 4))))
        wanted.append(("memory.oom.group", "0"))  # one hog must not take the other sessions' commands along
    if "pids" in controllers:
        most = least_limit(base, "pids.max")
        room = limits.COMMANDS_TASKS if most is None else most - min(limits.HOST_TASKS, most // 4)
        wanted.append(("pids.max", str(min(limits.COMMANDS_TASKS, room))))
    if "cpu" in controllers:
        wanted.append(("cpu.weight", str(limits.COMMANDS_WEIGHT)))
    if "io" in controllers:
        wanted.append(("io.weight", f"default {limits.COMMANDS_WEIGHT}"))
    return wanted


def _move_all(source: str, target: str) -> None:
    for _ in range(_MOVES):
        pids = _read(f"{source}/cgroup.procs").split()
        if not pids:
            return
        for pid in pids:
            if pid == "0":  # one of another PID namespace; to the kernel 0 would mean ourselves
                raise PermissionError(f"{source} holds processes that we cannot name")
            with contextlib.suppress(ProcessLookupError):
                _write(f"{target}/cgroup.procs", pid)
    raise BlockingIOError(f"{source} never became empty")


def _end_leftovers(commands: str) -> None:
    """Ends and removes what a worker left whose host could not."""
    for entry in list(os.scandir(commands)):
        if not entry.is_dir(follow_symlinks=False):
            continue
        _open_up(entry.path)
        with contextlib.suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kill(entry.path)
                for _ in range(_LOOKS):
                    if "populated 1" not in _read(f"{entry.path}/cgroup.events"):
                        break
                    time.sleep(_LOOK_SECONDS)
                _remove(entry.path)
            finally:
                os.close(lock)


# --- the host's part -----------------------------------------------------------------------------------------------------


def kill(leaf: str) -> None:
    """SIGKILL to all in it, as far as we may."""
    with contextlib.suppress(OSError):
        _write(f"{leaf}/cgroup.kill", "1")


def dissolve(leaf: str) -> None:
    """Takes a worker's leaf away, once it is empty, and with the last one makes base what it was: controllers off, processes
    back. As far as we may. One that something hangs in is a leftover for the next worker."""
    commands = os.path.dirname(leaf)
    base = os.path.dirname(commands)
    _open_up(base, commands, f"{base}/{_HOST}")
    _remove(leaf)
    _release(base)


def _remove(leaf: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(leaf)


def _release(base: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(f"{base}/{_COMMANDS}")
        host = f"{base}/{_HOST}"
        if not os.path.isdir(host) or any(entry.is_dir() and entry.name != _HOST for entry in os.scandir(base)):
            return  # nothing was moved; or somebody else uses the controllers too
        for name in _read(f"{base}/cgroup.subtree_control").split():
            _write(f"{base}/cgroup.subtree_control", f"-{name}")
        _move_all(host, base)
        os.rmdir(host)


# --- files ---------------------------------------------------------------------------------------------------------------
# Landlock forbids a command no chmod of what its user owns: what was closed to us so is opened again.


def _read(path: str) -> str:
    """Nothing, where there is nothing to read."""
    try:
        descriptor = _opened(path, os.O_RDONLY)
    except OSError:
        return ""
    with open(descriptor, encoding="ascii", errors="replace") as file:
        return file.read().strip()


def _write(path: str, text: str) -> None:
    """In one piece, as the kernel wants it."""
    descriptor = _opened(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except PermissionError:
        os.chmod(path, 0o644)
        return os.open(path, flags | os.O_CLOEXEC)


def _make(directory: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    _open_up(directory)


def _open_up(*directories: str) -> None:
    for directory in directories:
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            with contextlib.suppress(OSError):  # not there, or not ours
                os.chmod(directory, 0o755)
