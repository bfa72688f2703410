"""A network of the pod's own, one cable long. Unplugged, it drops every packet and no socket hears of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from typing import Final

_PROBE: Final = f"endurance-probe-{os.getpid()}"


@cache
def why_not() -> str | None:
    if os.geteuid() != 0:
        return "a network namespace needs root"
    if not (shutil.which("ip") and shutil.which("nsenter")):
        return "there is no ip and nsenter"
    try:  # as small a thing as will do: a container's root may not
        _ip("netns", "add", _PROBE)
    except subprocess.CalledProcessError:
        return "the kernel does not let us make a network namespace"
    _ip("netns", "delete", _PROBE)
    return None


class Network:
    """``address``: this end's, which the pod reaches."""

    def __init__(self) -> None:
        number = os.getpid() % 16384  # of 10.88.0.0/16, a /30 of ours
        self._name = f"endurance-{os.getpid()}"
        self._cable = f"endur{os.getpid()}"
        third, fourth = divmod(number * 4, 256)
        self.address = f"10.88.{third}.{fourth + 1}"
        self._inside = f"10.88.{third}.{fourth + 2}"

    def open(self) -> None:
        _ip("netns", "add", self._name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        _ip("address", "add", f"{self.address}/30", "dev", self._cable)
        _ip("link", "set", self._cable, "up")
        for arguments in (
            ("address", "add", f"{self._inside}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self._name, *arguments)

    def within(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._name}", *command]

    def plug(self, *, in_: bool) -> None:
        _ip("link", "set", self._cable, "up" if in_ else "down")

    def close(self) -> None:
        subprocess.run(["ip", "link", "delete", self._cable], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self._name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
