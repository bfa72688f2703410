"""What core does for each request of a harness (Harness API v5, sections 2 to 7 and 10)."""

from __future__ import annotations

import base64
from typing import Any

from pod_host.contract.artifacts import ArtifactReadParams
from pod_host.contract.base import Json, JsonObject, Sent
from pod_host.contract.encoding import encode
from pod_host.contract.open_points import FEATURE_FORMS
from pod_host.contract.work import DefinitionFileParams, EventParams, HelloParams, SessionMcpParams
from pod_host.dev.artifacts import Artifacts
from pod_host.dev.authority import Authority
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.connection import Connection, check_harness_id
from pod_host.dev.database import Database, dump, load
from pod_host.dev.definitions import Definitions
from pod_host.dev.journal import Journal
from pod_host.dev.leases import Leases
from pod_host.dev.outputs import Outputs
from pod_host.dev.record import Place, Record
from pod_host.dev.runs import Run
from pod_host.dev.sandbox import Sandbox, pod_workspace_key
from pod_host.dev.sessions import Sessions
from pod_host.dev.snapshots import facts, read_diagnostics, read_snapshot
from pod_host.dev.transcripts import Transcripts
from pod_host.dev.uploads import Uploads
from pod_host.errors import RuntimeRefusal

OUTPUTS = ("turn.completed", "turn.failed", "turn.waiting", "turn.paused", "checkpoint")


class SandboxRecord(Sent):
    """``record`` of a ``sandbox.state`` event."""

    key: str
    session_id: str
    sandbox_id: str | None = None
    backend: Json
    image: Json
    state: str
    created_at: Json
    updated_at: Json


class Service:
    def __init__(
        self,
        *,
        config: RuntimeConfig,
        tenant_id: str,
        db: Database,
        record: Record,
        authority: Authority,
        sandbox: Sandbox,
        definitions: Definitions,
        sessions: Sessions,
        transcripts: Transcripts,
        leases: Leases,
        journal: Journal,
        outputs: Outputs,
        artifacts: Artifacts,
        uploads: Uploads,
    ) -> None:
        self._config = config
        self._tenant_id = tenant_id
        self._db = db
        self._record = record
        self._authority = authority
        self._sandbox = sandbox
        self._definitions = definitions
        self._sessions = sessions
        self._transcripts = transcripts
        self._leases = leases
        self._journal = journal
        self._outputs = outputs
        self._artifacts = artifacts
        self._uploads = uploads

    async def serve(self, connection: Connection, method: str, params: Any) -> Any:
        """One request's answer. Raises RuntimeRefusal."""
        if method == "hello":
            return self._hello(connection, params)
        if not connection.harness_id:
            raise RuntimeRefusal("invalid", "hello must be the first request")
        if method in OUTPUTS:
            return self._outputs.output(connection, method, params)
        match method:
            case "lease":
                self._sandbox.leased_on_volume()
                return await self._leases.lease(connection)
            case "lease.renew":
                return self._leases.renew(connection, params.run_id)
            case "lease.release":
                return self._leases.release(connection, params.run_id, params.reason)
            case "effect.intent":
                return self._journal.intent(connection, params)
            case "effect.outcome":
                return self._journal.outcome(connection, params)
            case "transcript.read":
                run = self._leases.held(connection, params.run_id)
                return {
                    "cursor": self._transcripts.cursor(run.session_id),
                    "entries": self._transcripts.entries(run.session_id),
                }
            case "definition.file":
                return self._definition_file(connection, params)
            case "session.mcp":
                return self._session_mcp(connection, params)
            case "event":
                return self._event(connection, params)
            case "artifact.read":
                return await self._artifact_read(connection, params)
            case "artifact.write":
                run = self._leases.held(connection, params.run_id)
                return await self._uploads.write(run, params)
        raise RuntimeRefusal("invalid", f"Unknown {method} request")

    # --- One by one ------------------------------------------------------------------------------------------------------

    def _hello(self, connection: Connection, params: HelloParams) -> JsonObject:
        if connection.harness_id:
            raise RuntimeRefusal("invalid", "hello was said already")
        check_harness_id(params.name, self._config.agent.harness_id)
        if params.features not in FEATURE_FORMS:
            self._record.warn(f"hello: features {dump(params.features)} is none of the forms that v5's text suggests")
        connection.harness_id = params.name
        connection.features = params.features
        self._record.add("host.connected", version=params.version, features=params.features)
        return {
            "api": 5,
            "tenantId": self._tenant_id,
            "sandbox": {"backend": None},
            "renewEveryMs": max(1, round(self._config.times.lease * 1000 / 3)),
        }

    def _definition_file(self, connection: Connection, params: DefinitionFileParams) -> JsonObject:
        run = self._leases.held(connection, params.run_id)
        if params.sha256 not in self._sessions.definition(run.session_id).file_hashes():
            raise RuntimeRefusal("invalid", f"the manifest names no file {params.sha256}")
        most = self._config.limits.chunk_bytes
        length = most if params.length is None else params.length
        if length > most:
            raise RuntimeRefusal("limit_exceeded", f"length is {length}; chunkBytes is {most}")
        content = self._definitions.file(params.sha256)
        if content is None:
            raise RuntimeRefusal("unavailable", f"the store has no bytes of {params.sha256}")
        offset = params.offset or 0
        if offset > len(content):
            raise RuntimeRefusal("invalid", f"offset is {offset}, but the file has {len(content)} bytes")
        data = content[offset : offset + length]
        return {
            "base64": base64.b64encode(data).decode(),
            "offset": offset,
            "size": len(content),
            "eof": offset + len(data) == len(content),
        }

    def _session_mcp(self, connection: Connection, params: SessionMcpParams) -> JsonObject:
        run = self._leases.held(connection, params.run_id)
        definition = self._sessions.definition(run.session_id)
        read_diagnostics(params.diagnostics, self._record)
        if params.snapshot is not None:
            snapshot = read_snapshot(params.snapshot, definition, self._record)
            size, most = len(encode(snapshot)), self._config.limits.tool_answer_bytes
            if size > most:
                raise RuntimeRefusal("limit_exceeded", f"snapshot is {size} bytes; toolAnswerBytes is {most}")
            with self._db.transaction():
                first = self._db.run(
                    "UPDATE sessions SET mcp = ? WHERE id = ? AND mcp IS NULL",
                    dump(self._authority.redact(snapshot)),
                    run.session_id,
                ).rowcount
                if first:
                    self._record.add(
                        "session.mcp",
                        run.place,
                        servers={server["name"]: len(server["tools"]) for server in snapshot["servers"]},
                        diagnostics=self._authority.redact(params.diagnostics),
                    )
        recorded = self._sessions.row(run.session_id)["mcp"]
        return {"mcp": facts(load(recorded), definition)} if recorded is not None else {}

    def _event(self, connection: Connection, params: EventParams) -> JsonObject:
        run = self._acting_run(connection, params)
        size, most = len(encode(params.payload)), self._config.limits.record_entry_bytes
        if size > most:
            raise RuntimeRefusal("limit_exceeded", f"payload is {size} bytes; recordEntryBytes is {most}")
        if params.record is not None:
            self._check_record(params)
        self._record.add(
            params.type,
            Place(params.session_id, turn_id=params.turn_id, run_id=run.id if run else None),
            claimed=self._authority.redact(params.payload),
        )
        return {}

    def _acting_run(self, connection: Connection, params: EventParams) -> Run | None:
        """The run, or None for a workspace request, that the claim belongs to. Raises RuntimeRefusal."""
        if params.run_id is not None:
            run = self._leases.held(connection, params.run_id, cancelled=True)
            if params.session_id != run.session_id or params.turn_id not in (None, run.turn_id):
                raise RuntimeRefusal("run_not_held", "the claim is of another session or turn than its run")
            return run
        acting = connection.acting_for.values()
        if params.session_id in acting or (None in acting and self._knows(params.session_id)):
            return None
        raise RuntimeRefusal("run_not_held", f"no run and no workspace request acts for session {params.session_id}")

    def _knows(self, session_id: str) -> bool:
        return self._db.value("SELECT 1 FROM sessions WHERE id = ?", session_id) is not None

    def _check_record(self, params: EventParams) -> None:
        if params.type != "sandbox.state":
            raise RuntimeRefusal("invalid", "record goes with sandbox.state only")
        claimed = SandboxRecord.read(params.record, "event request: record")
        expected = pod_workspace_key(self._tenant_id, self._sandbox.id)
        if claimed.key != expected or claimed.session_id != params.session_id:
            raise RuntimeRefusal("invalid", f"record: key {expected} and the event's sessionId are needed")

    async def _artifact_read(self, connection: Connection, params: ArtifactReadParams) -> JsonObject:
        run = self._leases.held(connection, params.run_id)
        return await self._artifacts.read(run.session_id, params)
