"""TurnStart: everything that a harness is told of a turn (Harness API v5, section 3)."""

from __future__ import annotations

from pod_host.contract.base import JsonObject
from pod_host.contract.turn_start import TurnStart
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import load
from pod_host.dev.definitions import Definition
from pod_host.dev.journal import Journal
from pod_host.dev.memory import Memories
from pod_host.dev.runs import Run
from pod_host.dev.sessions import Sessions
from pod_host.dev.snapshots import facts
from pod_host.dev.transcripts import Transcripts

WORKSPACE = "/workspace"


class TurnStarts:
    def __init__(
        self,
        config: RuntimeConfig,
        sandbox_id: str,
        sessions: Sessions,
        transcripts: Transcripts,
        journal: Journal,
        memories: Memories,
    ) -> None:
        self._config = config
        self._sandbox_id = sandbox_id
        self._sessions = sessions
        self._transcripts = transcripts
        self._journal = journal
        self._memories = memories

    def build(self, run: Run) -> JsonObject:
        """The wire form, of the turn as it stands. Read once by the contract's own model: what we send must be readable."""
        turn = self._sessions.turn(run.turn_id)
        session = self._sessions.row(run.session_id)
        definition = self._sessions.definition(run.session_id)
        checkpoint: JsonObject = {
            "sessionId": run.session_id,
            "turnId": run.turn_id,
            "segment": run.segment,
            "manifestHash": run.manifest_hash,
            "input": load(turn["segment_input"]),
        }
        if session["state"] is not None:
            checkpoint["state"] = load(session["state"])
        start: JsonObject = {
            "type": "approval.answer" if turn["answered"] else "turn.start",
            "engine": "agent",
            "manifest": definition.manifest,
            "definition": {"name": definition.agent_id, "version": definition.version},
            "checkpoint": checkpoint,
            "outcomes": self._journal.completed_of(run.turn_id, run.segment),
            "transcript": {"cursor": self._transcripts.cursor(run.session_id)},
            "routing": {"rootManifest": definition.manifest, "sandbox": self.sandbox(run.session_id, definition)},
            "agent": {
                "id": self._sandbox_id,
                "kind": "pod",
                "sandbox": {"workspace": WORKSPACE},
                "selfWake": definition.self_wake,
            },
            "options": {"fixtureModel": self._config.model.descriptor.provider == "fixture"},
            "trace": {"traceparent": turn["trace"]},
            "limits": harness_limits(self._config),
            "model": descriptor(self._config),
        }
        if definition.loop is not None:
            start["loop"] = definition.loop
        if definition.memory is not None:
            start["memory"] = {**definition.memory, **self._memories.index_of(run.turn_id)}
        if session["mcp"] is not None:
            start["mcp"] = facts(load(session["mcp"]), definition)
        TurnStart.read(start)
        return start

    def sandbox(self, session_id: str, definition: Definition) -> JsonObject:
        """``routing.sandbox``. Each session owns its own commands; all share the Agent's one pod."""
        return {
            "ownerId": session_id,
            "environmentId": self._sandbox_id,
            "spec": {"network": {"preset": "none", "allow": definition.network_allow}},
            "environment": definition.environment,
        }


def harness_limits(config: RuntimeConfig) -> JsonObject:
    return config.limits.model_dump(mode="json", by_alias=True)


def descriptor(config: RuntimeConfig) -> JsonObject:
    """The model of a call that names none, by wire name."""
    return config.model.descriptor.model_dump(mode="json", by_alias=True, exclude_none=True)
