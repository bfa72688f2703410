"""The network gate, against real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pod_host.errors import NetworkGateError
from pod_host.host.network_gate import GateTimes, pass_network_gate
from pod_host.settings import Address

QUICK = GateTimes(attempt=1.0, pause=0.01, deadline=60.0)


class Listener:
    """Counts who connects."""

    def __init__(self) -> None:
        self.connections = 0
        self.reached = asyncio.Condition()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        async with self.reached:
            self.connections += 1
            self.reached.notify_all()

    async def wait_for(self, count: int) -> None:
        async with self.reached:
            await self.reached.wait_for(lambda: self.connections >= count)

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        async with server:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


async def closed_address() -> Address:
    """An address of loopback where nobody listens."""
    async with Listener().listening() as address:
        pass
    return address


async def test_it_passes_when_the_probe_is_closed_and_the_runtime_is_there() -> None:
    runtime = Listener()
    async with runtime.listening() as address:
        await pass_network_gate([await closed_address(), await closed_address()], address, QUICK)
    assert runtime.connections == 6  # three failures of each probe, each beside a Runtime that answers


async def test_it_waits_while_the_probe_is_open_and_passes_once_it_is_closed() -> None:
    probe, runtime = Listener(), Listener()
    async with runtime.listening() as runtime_address:
        async with probe.listening() as probe_address:
            gate = asyncio.create_task(pass_network_gate([probe_address], runtime_address, QUICK))
            await probe.wait_for(4)
            assert not gate.done()
        await gate


async def test_a_probe_that_stays_open_is_an_error_that_names_it() -> None:
    probe, runtime = Listener(), Listener()
    async with runtime.listening() as runtime_address, probe.listening() as probe_address:
        with pytest.raises(NetworkGateError, match=str(probe_address)):
            await pass_network_gate([probe_address], runtime_address, GateTimes(pause=0.01, deadline=0.05))


async def test_failures_prove_nothing_while_the_runtime_cannot_be_reached() -> None:
    """Before the network is up everything is unreachable: that is no policy, and no reason to exit either."""
    runtime_address = await closed_address()
    quick = GateTimes(pause=0.01, deadline=0.0)
    gate = asyncio.create_task(pass_network_gate([await closed_address()], runtime_address, quick))
    await asyncio.wait({gate}, timeout=0.3)  # many rounds; nothing tells of what must not come
    assert not gate.done()
    runtime = Listener()
    async with runtime.listening(runtime_address.port):
        await gate
    assert runtime.connections == 3


async def test_a_host_name_that_cannot_be_one_counts_as_unreachable() -> None:
    runtime = Listener()
    async with runtime.listening() as address:
        await pass_network_gate([Address("x" * 70 + ".invalid", 1)], address, QUICK)
