"""The same messages to a whole channel, on a socket in memory: it ends or goes on, and settles whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from pod_host.client import Channel
from pod_host.contract.base import Empty, JsonObject, Wire
from pod_host.contract.encoding import decode
from pod_host.contract.work import RunParams
from pod_host.errors import RuntimeRefusal
from tests.client.peers import in_task
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source
from tests.fuzz.targets import frames


class Socket:
    """Says what it was given, then breaks: as much of the channel's own connection as the channel uses."""

    def __init__(self, heard: list[str]) -> None:
        self.loop = asyncio.get_running_loop()
        self.heard_at = self.loop.time()
        self.room = asyncio.Event()
        self.room.set()
        self.writable = True
        self.transport = self
        self._heard = heard
        self.sent: list[bytes] = []

    def listen(self, hear: Callable[[bytes, bool], None], lose: Callable[[str], None], go_on: object) -> None:
        self._saying = asyncio.create_task(self._say_all(hear, lose))

    async def _say_all(self, hear: Callable[[bytes, bool], None], lose: Callable[[str], None]) -> None:
        for message in self._heard:
            await asyncio.sleep(0)  # each in a turn of the loop of its own, as they come
            hear(message.encode("utf-8", "surrogatepass"), True)
        await asyncio.sleep(1)  # on the loop's own clock: what is still served may end before, or does not
        lose("it broke")

    def say(self, texts: Iterable[bytes]) -> None:
        for text in texts:
            decode(text)
            self.sent.append(text)

    async def send(self, message: AsyncIterable[memoryview], text: bool) -> None:
        assert text
        self.say([b"".join([bytes(piece) async for piece in message])])

    async def close(self, code: int, reason: str) -> None:
        assert len(reason.encode()) <= 123, "a closing frame holds no more"

    async def wait_closed(self) -> None:
        pass

    def abort(self) -> None:
        self._saying.cancel()


def run(source: Source) -> None:
    with loop.no_bugs():
        loop.run(_channel(source))


async def _channel(source: Source) -> None:
    heard = [frames.frame(source) for _ in range(1 + source.below(6))]
    size = sum(map(len, heard))
    socket: Any = Socket(heard)

    async def on_request(method: str, params: Any) -> Wire | JsonObject:
        match source.below(3):
            case 0:
                return {"kind": "completed", "output": params}
            case 1:
                raise RuntimeRefusal(hostile.text(source), "no")
            case _:
                await asyncio.sleep(source.below(3))
                return {}

    channel = Channel(socket, in_task(on_request), lambda method, params: None, silence_seconds=60)
    asked = (("lease", Empty()), ("transcript.read", RunParams(run_id="run_1")), ("lease.renew", RunParams(run_id="r")))
    answers = await asyncio.gather(*(channel.request(*each) for each in asked), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, RuntimeRefusal | Wire), answer
    await channel.wait_closed()
    assert sum(map(len, socket.sent)) <= 8 * size + 4096
