"""A cluster's network in namespaces: two pods' networks, a router, and the node of the Runtime and the API server.

    pod 10.244.0.2, open 10.244.1.2 ── router ── runtime 192.0.2.1, 10.96.0.1 (the API server)

The router filters as a network plugin does, by the NetworkPolicy document itself: the network `pod` while `apply` is in
force, the network `open` never. No process in a pod can undo it.
"""

from __future__ import annotations

import os
import subprocess
from typing import Final

from tests.image.machine import Machine
from tests.image.render import Document

RUNTIME: Final = "192.0.2.1"
API_SERVER: Final = ("10.96.0.1", 443)
PODS: Final = {"pod": "10.244.0", "open": "10.244.1"}


class Network:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._prefix = f"ph{os.getpid()}"  # a name of ours alone
        self._api_server: subprocess.Popen[bytes] | None = None

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def inside(self, name: str, *command: str) -> list[str]:
        """The command in that network, and in nothing else of its own: `ip netns exec` would hide the cgroups."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(name)}", *command]

    def open(self) -> None:
        for name in (*PODS, "router", "runtime"):
            self._ip("netns", "add", self.namespace(name))
            self._in(name, "link", "set", "lo", "up")
        for name, network in PODS.items():
            self._wire(name, f"{network}.2/24", f"{network}.1/24")
        self._wire("runtime", f"{RUNTIME}/24", "192.0.2.254/24")
        self._in("runtime", "address", "add", f"{API_SERVER[0]}/32", "dev", "lo")
        self._in("router", "route", "add", f"{API_SERVER[0]}/32", "via", RUNTIME)
        self._machine.run(*self.inside("router", "sysctl", "-qw", "net.ipv4.ip_forward=1"))
        self._serve_api()

    def apply(self, policy: Document) -> None:
        """Put a NetworkPolicy in force for the network `pod`: packets that it does not allow are dropped."""
        pod = f"{PODS['pod']}.2"
        allowed = [
            f"ip saddr {pod} ip daddr {peer['ipBlock']['cidr']} {port['protocol'].lower()} dport {port['port']} accept"
            for rule in policy["spec"].get("egress", ())
            for peer in rule["to"]
            for port in rule["ports"]
        ]
        lines = [
            "table inet sandboxes {",
            "chain forward {",
            "type filter hook forward priority 0; policy accept;",
            "ct state established,related accept",
            *allowed,
            f"ip saddr {pod} drop",
            f"ip daddr {pod} drop",
            "}",
            "}",
        ]
        self.lift()
        self._machine.run(*self.inside("router", "nft", "-f", "-"), stdin="\n".join(lines) + "\n")

    def lift(self) -> None:
        self._machine.run(*self.inside("router", "nft", "flush", "ruleset"))

    def close(self) -> None:
        if self._api_server is not None:
            self._api_server.terminate()
            self._api_server.wait()
        for name in (*PODS, "router", "runtime"):
            self._ip("netns", "delete", self.namespace(name), check=False)

    def _serve_api(self) -> None:
        """Something that takes connections where a cluster's API server does."""
        program = (
            "import socket, sys\n"
            f"s = socket.create_server({API_SERVER!r})\n"
            "print('up', flush=True)\n"
            "while True: s.accept()[0].close()\n"
        )
        command = self.inside("runtime", "python3", "-c", program)
        self._api_server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._api_server.stdout is not None
        assert self._api_server.stdout.readline() == b"up\n"

    def _wire(self, name: str, address: str, router: str) -> None:
        end = ["netns", self.namespace(name)]
        self._ip("link", "add", "eth0", *end, "type", "veth", "peer", "name", name, "netns", self.namespace("router"))
        for where, device, own in ((name, "eth0", address), ("router", name, router)):
            self._in(where, "address", "add", own, "dev", device)
            self._in(where, "link", "set", device, "up")
        self._in(name, "route", "add", "default", "via", router.split("/")[0])

    def _in(self, name: str, *arguments: str) -> None:
        self._ip("-n", self.namespace(name), *arguments)

    def _ip(self, *arguments: str, check: bool = True) -> None:
        self._machine.run("ip", *arguments, check=check)
