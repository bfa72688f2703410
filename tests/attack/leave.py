"""Run as a command: can it leave its cgroup, or change what it or the host may have? Argument: the delegated cgroup.

Prints JSON: by attempt, the errno met (0: it went through), and ``cgroup``, what it is in at the end. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x200000000
_SIGCHLD = 17
SETTINGS = {
    "memory.max": "max",
    "pids.max": "max",
    "cpu.weight": "10000",
    "cgroup.subtree_control": "+pids",
    "cgroup.type": "threaded",
    "cgroup.freeze": "1",
    "cgroup.kill": "1",
}
_libc = ctypes.CDLL(None, use_errno=True)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def write_as_owner(path: str, text: str) -> None:
    os.chmod(path, 0o777)
    write(path, text)


def born_in(directory: str, flags: int) -> None:
    """A child that starts its life in another cgroup: no file of it is opened for writing."""
    descriptor = os.open(directory, flags | os.O_DIRECTORY)
    arguments = struct.pack("=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, descriptor)
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    pid = _libc.syscall(ctypes.c_long(_CLONE3), buffer, ctypes.c_long(len(arguments)))
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    os.waitpid(pid, 0)


def mounted_anew(directory: str) -> None:
    place = os.path.abspath("cgroups")
    os.makedirs(place, exist_ok=True)
    if _libc.unshare(0x10020000) or _libc.mount(b"none", place.encode(), b"cgroup2", 0, None):
        raise OSError(ctypes.get_errno(), "mount")


def attempts(base: str) -> dict[str, Callable[[], object]]:
    tries: dict[str, Callable[[], object]] = {"mount": lambda: mounted_anew(base)}
    # What leads upwards comes last: were one of them to go through, the others would mean less.
    for name, pattern in (("leaf", "commands/*"), ("commands", "commands"), ("host", "host"), ("base", "")):
        for found in Path(base).glob(pattern) if pattern else [Path(base)]:
            if found.is_dir():
                tries |= {f"{name} {what}": attempt for what, attempt in on(str(found), leaf=name == "leaf").items()}
    return tries


def on(place: str, *, leaf: bool) -> dict[str, Callable[[], object]]:
    tries: dict[str, Callable[[], object]] = {
        file: partial(write, f"{place}/{file}", text)
        for file, text in SETTINGS.items()
        if os.path.exists(f"{place}/{file}") and not (leaf and text == "1")  # those would only be ours to suffer
    }
    tries["mkdir"] = partial(os.mkdir, f"{place}/mine")
    tries["rmdir"] = partial(os.rmdir, place)
    if not leaf:
        tries["procs"] = partial(write, f"{place}/cgroup.procs", "0")
        tries["procs, its mode changed"] = partial(write_as_owner, f"{place}/cgroup.procs", "0")
        tries["threads"] = partial(write, f"{place}/cgroup.threads", "0")
        tries["clone3"] = partial(born_in, place, os.O_RDONLY)
        tries["clone3, only named"] = partial(born_in, place, os.O_PATH)
    return tries


def own() -> str:
    (line,) = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    return line[3:]


def main() -> None:
    met = {}
    before = own()
    for name, attempt in attempts(sys.argv[1]).items():
        pid = os.fork()
        if pid == 0:
            try:
                attempt()
            except OSError as error:
                os._exit(error.errno or 255)
            os._exit(0)
        met[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({"met": met, "cgroups": [before, own()]}))


if __name__ == "__main__":
    main()
