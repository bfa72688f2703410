"""A model call as bytes: its gate body made in one copy of pieces that are canonical already, and its hash over them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pod_host import limits
from pod_host.contract.canonical import canonical, canonical_object
from pod_host.contract.effects import ModelIntent

_HOLE = b"\0"  # where a large value goes: canonical JSON escapes every control character, so it holds none


@dataclass(frozen=True, slots=True)
class CallBytes:
    """``body``: of ``POST model-calls``; ``call``: the ModelCall within it."""

    body: bytes
    call: memoryview

    @classmethod
    def of(
        cls, intent: ModelIntent, session_id: str, prompt: Sequence[bytes], tools: bytes, model: bytes | None = None
    ) -> CallBytes:
        """``prompt``: canonical items in order, a piece may hold several; ``tools``: a canonical array; ``model``: a
        canonical ModelChoice."""
        body_head, body_tail = _around(
            {
                "call": _HOLE,
                "effectId": canonical(intent.effect_id),
                "invocationId": canonical(intent.context.invocation_id),
            }
        )
        chosen = {} if model is None else {"model": model}
        call_head, call_tail = _around(
            {"executionId": canonical(session_id), "prompt": _HOLE, "tools": tools, **chosen}
        )
        pieces = list(prompt) or [b""]
        pieces[0] = body_head + call_head + b"[" + pieces[0]
        pieces[-1] = pieces[-1] + b"]" + call_tail + body_tail
        body = b",".join(pieces)
        return cls(body, memoryview(body)[len(body_head) : len(body) - len(body_tail)])

    async def request_hash(self, intent: ModelIntent) -> str:
        """Of the intent with ``input`` set to the ModelCall (section 4). A large call is hashed beside the event loop:
        hashlib frees the interpreter's lock."""
        head, tail = _around({**{name: canonical(value) for name, value in intent.wire().items()}, "input": _HOLE})
        if len(self.body) <= limits.LOOP_PIECE_BYTES:
            return self._digest(head, tail)
        return await asyncio.to_thread(self._digest, head, tail)

    def _digest(self, head: bytes, tail: bytes) -> str:
        digest = hashlib.sha256(head)
        digest.update(self.call)
        digest.update(tail)
        return digest.hexdigest()


def _around(members: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """A canonical object's text before and after the hole in it."""
    head, _, tail = canonical_object(members).partition(_HOLE)
    return head, tail
