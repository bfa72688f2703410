"""The relay's process: it makes itself harmless, then serves.

``main(control, listener)``: two descriptors. By the first, a socket of packets, the host sends JSON objects: first
``{"uid"}``, then ``{"authorization", "addresses"}`` at each new token. It answers ``{"ready": true}`` once. When the host
goes, so does the relay: the socket ends. Nothing of worth is in its arguments or its environment.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 - the loop would load it later, when no file can be opened
import json
import os
import resource
import signal
import socket
from typing import Any, Final

from pod_host.relay.proxy import CLIENTS, TUNNELS, Proxy
from pod_host.sandbox import kernel
from pod_host.sandbox.landlock import handled_rights

PACKET_BYTES: Final = 64 * 1024
_DESCRIPTORS: Final = CLIENTS + TUNNELS + 32
_SCOPES: Final = 3  # no abstract sockets and no signals out of the domain
_SCOPES_FROM_ABI: Final = 6


def main(control: int, listener: int) -> None:
    kernel.become_undumpable()  # before anything is heard
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host's end is ours, not a terminal's
    host = socket.socket(fileno=control)
    first = host.recv(PACKET_BYTES)
    if not first:
        return
    confine(json.loads(first)["uid"])
    asyncio.run(_serve(host, socket.socket(fileno=listener)))


def confine(uid: int | None) -> None:
    """No files, no programs, no signals to others, as far as the kernel holds it; ``uid``: what root becomes."""
    if uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        kernel.become_undumpable()  # a change of user undoes it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    abi = kernel.landlock_abi()
    if abi:
        ruleset = kernel.landlock_create(handled_rights(abi), _SCOPES if abi >= _SCOPES_FROM_ABI else 0)
        kernel.landlock_restrict(ruleset)
        os.close(ruleset)


async def _serve(host: socket.socket, listener: socket.socket) -> None:
    """Clients wait in the listener's queue until there is a token: one that comes while a relay is replaced gets through."""
    proxy = Proxy()
    host.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(host, b'{"ready": true}')
    if await _hear(host, proxy):
        tasks = {asyncio.create_task(proxy.serve(listener)), asyncio.create_task(_hear_on(host, proxy))}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    os._exit(0)  # the host is gone: clients that read slowly are no reason to stay


async def _hear_on(host: socket.socket, proxy: Proxy) -> None:
    while await _hear(host, proxy):
        pass


async def _hear(host: socket.socket, proxy: Proxy) -> bool:
    """The next token. False when the host is gone."""
    packet = await asyncio.get_running_loop().sock_recv(host, PACKET_BYTES)
    if packet:
        told: dict[str, Any] = json.loads(packet)
        proxy.authorize(told["authorization"], [(address, port) for address, port in told["addresses"]])
    return bool(packet)
