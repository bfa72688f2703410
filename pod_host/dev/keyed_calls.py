"""Calls at a gate: each under its key, outliving its client, its answer kept for a while (Harness API v5, section 5)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import orjson

from pod_host.contract.base import Json
from pod_host.errors import GateRefusal

KEPT_CALLS: Final = 10_000
T = TypeVar("T")


@dataclass
class _Call(Generic[T]):
    """``settled``: when its answer came, in seconds of the monotonic clock."""

    session_id: str
    body_hash: str
    task: asyncio.Task[T]
    settled: float | None = None


class KeyedCalls(Generic[T]):
    """``kept_seconds``: how long an answer is kept after it came. ``stopping``: calls are being dropped, not cancelled."""

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._calls: dict[str, _Call[T]] = {}
        self.stopping = False

    def knows(self, key: str) -> bool:
        """Whether the call runs, or its answer is kept: a re-send joins it."""
        self._forget_old()
        return key in self._calls

    async def call(self, key: str, session_id: str, body_hash: str, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``run`` gives, run once for the key. Raises GateRefusal when another request ran under it."""
        self._forget_old()
        known = self._calls.get(key)
        if known is None:
            task = asyncio.create_task(run())
            known = self._calls[key] = _Call(session_id, body_hash, task)
            task.add_done_callback(lambda _: self._settled(key))
        elif known.body_hash != body_hash:
            raise conflict()
        return await asyncio.shield(known.task)  # the call outlives this client: the next one joins it

    def cancel(self, key: str, session_id: str) -> None:
        """Abort a call that runs. Raises GateRefusal for another session's."""
        known = self._calls.get(key)
        if known is None:
            return
        if known.session_id != session_id:
            raise GateRefusal(403, "gate_forbidden", "the call is another session's")
        known.task.cancel()

    async def stop(self) -> None:
        """Calls that run are dropped without an answer: the next Runtime is asked for them again."""
        self.stopping = True
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settled(self, key: str) -> None:
        known = self._calls.get(key)
        if known is not None:
            known.settled = time.monotonic()
            if known.task.cancelled():  # before it began: there is no answer to keep
                del self._calls[key]

    def _forget_old(self) -> None:
        """Answers are kept for a while, the newest of them."""
        since = time.monotonic() - self._kept_seconds
        over = [key for key, call in self._calls.items() if call.settled is not None]
        for key in over:
            if len(self._calls) > KEPT_CALLS or (self._calls[key].settled or 0.0) < since:
                del self._calls[key]


def body_hash(body: Json) -> str:
    """Of what a body means: neither the members' order nor white space counts."""
    try:
        text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate
        text = json.dumps(body, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()


def conflict() -> GateRefusal:
    return GateRefusal(409, "gate_conflict", "another request already ran under this key")
