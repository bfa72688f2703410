"""The Model Gate's calls: each under its key, outliving its client, its outcome kept (Harness API v5, section 5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.model_call import ModelCandidate, ModelFailure, input_kind
from pod_host.dev.artifacts import Artifacts
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database, dump, load
from pod_host.dev.keyed_calls import KeyedCalls, body_hash
from pod_host.dev.record import iso
from pod_host.errors import ContractViolation

log = logging.getLogger(__name__)


class ModelGate:
    def __init__(self, config: RuntimeConfig, db: Database, artifacts: Artifacts) -> None:
        self._config = config
        self._db = db
        self._artifacts = artifacts
        self._calls = KeyedCalls[JsonObject](config.times.outcome)

    def knows(self, effect_id: str) -> bool:
        """Whether the call runs, or its outcome is kept: a re-send joins it."""
        return self._calls.knows(effect_id)

    async def call(self, effect_id: str, session_id: str, turn_id: str, call: JsonObject) -> JsonObject:
        """The outcome. Raises GateRefusal when another request ran under this key."""
        hashed = body_hash([session_id, turn_id, call])
        return await self._calls.call(
            effect_id, session_id, hashed, partial(self._run, effect_id, session_id, turn_id, call)
        )

    def cancel(self, effect_id: str, session_id: str) -> None:
        """Abort a call that runs. Raises GateRefusal for another session's."""
        self._calls.cancel(effect_id, session_id)

    async def stop(self) -> None:
        """Calls that run are dropped without an outcome: the next Runtime is asked for them again."""
        await self._calls.stop()

    def usage_rows(self, session_id: str) -> list[JsonObject]:
        rows = self._db.all("SELECT * FROM model_usage WHERE session_id = ? ORDER BY rowid", session_id)
        return [{"effectId": row["effect_id"], "turnId": row["turn_id"], **load(row["body"])} for row in rows]

    # --- Inside ----------------------------------------------------------------------------------------------------------

    async def _run(self, effect_id: str, session_id: str, turn_id: str, call: JsonObject) -> JsonObject:
        started = time.time()
        try:
            outcome = await self._answer(effect_id, session_id, call)
        except asyncio.CancelledError:
            if self._calls.stopping:
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


def _failed(code: str, message: str) -> JsonObject:
    return {"kind": "failed", "code": code, "message": message, "retryable": False}
