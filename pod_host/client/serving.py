"""Requests of the Runtime: each is handed to whoever serves it, and is owed one answer (Harness API v5, section 1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from pod_host import limits
from pod_host.client.outbox import Outbox, Outgoing, prepare
from pod_host.contract import rpc
from pod_host.contract.base import JsonObject, Wire
from pod_host.contract.encoding import encode, is_small
from pod_host.errors import PodHostError, RuntimeRefusal

_log = logging.getLogger(__name__)


class Served:
    """One request, to be answered once, by `answer` or `fail`, now or later. ``stop``, set by whoever serves it, is called
    when nobody wants the answer any more: the Runtime gave up, or the channel ended. An answer that comes then is
    dropped."""

    def __init__(self, serving: Serving, asked: rpc.Serve) -> None:
        self.id = asked.id
        self.method = asked.method
        self.params = asked.params
        self.stop: Callable[[], object] = _nothing
        self._serving = serving

    def answer(self, result: Wire | JsonObject) -> None:
        self._serving.answer(self, result)

    def fail(self, fault: Exception) -> None:
        """A PodHostError crosses as its code, any other as ``internal``."""
        self._serving.fail(self, fault)


OnRequest: TypeAlias = Callable[[Served], None]
"""Begins to serve one request, and returns at once. What it raises is the request's answer, as by `Served.fail`."""


class Serving:
    """All that are being served on one channel."""

    def __init__(self, peer: rpc.Peer, outbox: Outbox, on_request: OnRequest) -> None:
        self._peer = peer
        self._outbox = outbox
        self._on_request = on_request
        self._served: dict[int, Served] = {}

    @property
    def idle(self) -> bool:
        return not self._served

    def begin(self, asked: rpc.Serve) -> None:
        if asked.id in self._served:  # its answer is large, and still being written: then the id is free again
            refused = self._peer.refuse(asked.id, "invalid", f"Request {asked.id} is still being served")
            self._outbox.put(Outgoing([encode(refused)]))
            return
        served = self._served[asked.id] = Served(self, asked)
        try:
            self._on_request(served)
        except Exception as fault:  # noqa: BLE001 - it crosses
            self.fail(served, fault)

    def give_up(self, number: int) -> None:
        """An answer is owed all the same: the peer drops it, and the id is free again."""
        if served := self._served.get(number):
            served.stop()
            self.fail(served, RuntimeRefusal("unavailable", "The requester gave up"))

    def end(self) -> None:
        """The channel is gone."""
        given_up, self._served = self._served, {}
        for served in given_up.values():
            served.stop()

    def answer(self, served: Served, result: Wire | JsonObject) -> None:
        if not self._owed(served):
            return
        try:
            frame = self._peer.answer(served.id, result)
            if is_small(frame, limits.LOOP_PIECE_BYTES):
                self._leave(served, Outgoing([encode(frame)]))
            else:
                served.stop = asyncio.create_task(self._answer_large(served, frame)).cancel
        except Exception as fault:  # noqa: BLE001 - it crosses
            self.fail(served, fault)

    async def _answer_large(self, served: Served, frame: JsonObject) -> None:
        try:
            outgoing = await prepare(frame, f"The {served.method} answer")
        except Exception as fault:  # noqa: BLE001 - it crosses
            self.fail(served, fault)
        else:
            self._leave(served, outgoing)

    def fail(self, served: Served, fault: Exception) -> None:
        if not self._owed(served):
            return
        if isinstance(fault, RuntimeRefusal):
            code, text = fault.code, fault.message
        elif isinstance(fault, PodHostError):
            code, text = fault.code, str(fault)
        else:
            _log.error("%s failed", served.method, exc_info=fault)
            code, text = "internal", f"{type(fault).__name__}: {fault}"
        self._leave(served, Outgoing([encode(self._peer.refuse(served.id, code, text))]))

    def _owed(self, served: Served) -> bool:
        return self._served.get(served.id) is served

    def _leave(self, served: Served, outgoing: Outgoing) -> None:
        del self._served[served.id]
        self._outbox.put(outgoing)


def _nothing() -> None:
    """Nothing is to be stopped."""
