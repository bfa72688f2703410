"""The Model Gate's calls: each under its key, outliving its client, its outcome kept (Harness API v5, section 5)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import ModelCandidate, ModelFailure, input_kind
from pod_host.dev.artifacts import Artifacts
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database, dump, load
from pod_host.dev.record import iso
from pod_host.errors import ContractViolation, GateRefusal

log = logging.getLogger(__name__)

KEPT_CALLS: Final = 10_000


@dataclass
class Call:
    """One keyed call. ``settled``: when its outcome came, in seconds of the monotonic clock."""

    session_id: str
    body_hash: str
    task: asyncio.Task[JsonObject]
    settled: float | None = None


class ModelGate:
    def __init__(self, config: RuntimeConfig, db: Database, artifacts: Artifacts) -> None:
        self._config = config
        self._db = db
        self._artifacts = artifacts
        self._calls: dict[str, Call] = {}
        self._stopping = False

    def knows(self, effect_id: str) -> bool:
        """Whether the call runs, or its outcome is kept: a re-send joins it."""
        self._forget_old()
        return effect_id in self._calls

    async def call(self, effect_id: str, session_id: str, turn_id: str, call: JsonObject) -> JsonObject:
        """The outcome. Raises GateRefusal when another request ran under this key."""
        self._forget_old()
        body_hash = _body_hash([session_id, turn_id, call])
        known = self._calls.get(effect_id)
        if known is None:
            task = asyncio.create_task(self._run(effect_id, session_id, turn_id, call))
            known = self._calls[effect_id] = Call(session_id, body_hash, task)
            task.add_done_callback(lambda _: self._settled(effect_id))
        elif known.body_hash != body_hash:
            raise GateRefusal(409, "gate_conflict", "another request already ran under this key")
        return await asyncio.shield(known.task)  # the call outlives this client: the next one joins it

    def cancel(self, effect_id: str, session_id: str) -> None:
        """Abort a call that runs. Raises GateRefusal for another session's."""
        known = self._calls.get(effect_id)
        if known is None:
            return
        if known.session_id != session_id:
            raise GateRefusal(403, "gate_forbidden", "the call is another session's")
        known.task.cancel()

    async def stop(self) -> None:
        """Calls that run are dropped without an outcome: the next Runtime is asked for them again."""
        self._stopping = True
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def usage_rows(self, session_id: str) -> list[JsonObject]:
        rows = self._db.all("SELECT * FROM model_usage WHERE session_id = ? ORDER BY rowid", session_id)
        return [{"effectId": row["effect_id"], "turnId": row["turn_id"], **load(row["body"])} for row in rows]

    # --- Inside ----------------------------------------------------------------------------------------------------------

    async def _run(self, effect_id: str, session_id: str, turn_id: str, call: JsonObject) -> JsonObject:
        started = time.time()
        try:
            outcome = await self._answer(effect_id, session_id, call)
        except asyncio.CancelledError:
            if self._stopping:
                raise
            outcome = _failed("transient", "The call was cancelled")
        self._meter(effect_id, session_id, turn_id, outcome, started)
        return outcome

    async def _answer(self, effect_id: str, session_id: str, call: JsonObject) -> JsonObject:
        async def files(reference: JsonObject) -> tuple[bytes, str]:
            return await self._artifacts.file(session_id, reference)

        refusal = await self._refused_media(call, files)
        if refusal is not None:
            return refusal
        try:
            outcome = await self._config.model.answer(call, effect_id=effect_id, files=files)
        except Exception as fault:  # a broken model is a failed call, not a broken gate
            log.exception("the model failed")
            return _failed("transient", f"The model failed: {type(fault).__name__}: {fault}")
        try:
            (ModelFailure if outcome.get("kind") == "failed" else ModelCandidate).read(outcome)
        except ContractViolation as fault:
            return _failed("invalid_output", str(fault))
        return outcome

    async def _refused_media(self, call: JsonObject, files: Callable[[JsonObject], Json]) -> JsonObject | None:
        """The gate decides nothing about files; what cannot go is refused before anything is sent."""
        inputs = self._config.model.descriptor.inputs
        for item in call["prompt"]:
            for part in item["content"]:
                if part["type"] != "media":
                    continue
                kind = input_kind(part["mediaType"])
                if kind not in inputs or kind == "text":
                    return _failed("unsupported_input", f"The model does not read {part['mediaType']} as a file")
                try:
                    await files(part["reference"])
                except LookupError as fault:
                    return _failed("invalid_request", f"A file cannot be fetched: {fault}")
        return None

    def _meter(self, effect_id: str, session_id: str, turn_id: str, outcome: JsonObject, started: float) -> None:
        model = self._config.model.descriptor
        failed = outcome.get("kind") == "failed"
        body: JsonObject = {
            "at": iso(started),
            "provider": model.provider,
            "model": (outcome.get("evidence") or {}).get("resolvedModel") or model.id,
            "outcome": "failed" if failed else "completed",
            "durationMs": round((time.time() - started) * 1000),
        }
        body |= {"code": outcome.get("code")} if failed else {"usage": outcome.get("usage") or {}}
        self._db.run(
            "INSERT OR REPLACE INTO model_usage VALUES (?, ?, ?, ?)", effect_id, session_id, turn_id, dump(body)
        )

    def _settled(self, effect_id: str) -> None:
        known = self._calls.get(effect_id)
        if known is not None:
            known.settled = time.monotonic()
            if known.task.cancelled():  # before it began: there is no outcome to keep
                del self._calls[effect_id]

    def _forget_old(self) -> None:
        """Outcomes are kept for a while, the newest of them."""
        since = time.monotonic() - self._config.times.outcome
        over = [key for key, call in self._calls.items() if call.settled is not None]
        for key in over:
            if len(self._calls) > KEPT_CALLS or (self._calls[key].settled or 0.0) < since:
                del self._calls[key]


def _failed(code: str, message: str) -> JsonObject:
    return {"kind": "failed", "code": code, "message": message, "retryable": False}


def _body_hash(body: Json) -> str:
    """Of what a body means: neither the members' order nor white space counts."""
    try:
        text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate
        text = json.dumps(body, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()
