"""Which TCP ports processes listen on, as the kernel tells it: its table of sockets, and whose descriptors they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Final

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = b"0A"  # the state, as the tables write it
_MOST_TABLE_BYTES: Final = 1024 * 1024  # 7000 sockets: a command may have opened more, and is not worth the time
_MOST_DESCRIPTORS: Final = 10_000  # looked at in all, for the same reason


def listening_ports(pids: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
    """By pid, the ports it listens on in our network namespace, in order. Who listens on none is left out."""
    port_of = _listening_sockets()
    left = _MOST_DESCRIPTORS if port_of else 0
    found = {}
    for pid in pids:
        if left <= 0:
            break
        links = _descriptors(pid, left)
        left -= len(links)
        ports = {port_of[link] for link in links if link in port_of}
        if ports:
            found[pid] = tuple(sorted(ports))
    return found


def _listening_sockets() -> dict[str, int]:
    """By the name that a descriptor's link has, the port."""
    found = {}
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table, "rb") as file:  # no IPv6: no such table
            for line in file.read(_MOST_TABLE_BYTES).splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTENING:
                    found[f"socket:[{fields[9].decode()}]"] = int(fields[1].rpartition(b":")[2], 16)
    return found


def _descriptors(pid: int, most: int) -> list[str]:
    links = []
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # gone, or it made itself unreadable
        for name in os.listdir(directory)[:most]:
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"{directory}/{name}"))
    return links
