"""The embedded Runtime as one thing: made of its parts, started, stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from pod_host.contract.base import JsonObject
from pod_host.dev.artifacts import Artifacts
from pod_host.dev.authority import Authority
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database
from pod_host.dev.definitions import Definition, Definitions
from pod_host.dev.egress import EgressProxy
from pod_host.dev.gates import Gates
from pod_host.dev.harness_listener import HarnessListener
from pod_host.dev.interception import Interception
from pod_host.dev.journal import Journal
from pod_host.dev.leases import Leases
from pod_host.dev.listening import listen
from pod_host.dev.memory import Memories
from pod_host.dev.model_gate import ModelGate
from pod_host.dev.north import North
from pod_host.dev.outputs import Outputs
from pod_host.dev.record import Record
from pod_host.dev.runs import PAST_DEADLINE
from pod_host.dev.sandbox import Sandbox
from pod_host.dev.service import Service
from pod_host.dev.sessions import NorthRefusal, Sessions
from pod_host.dev.tool_gate import ToolGate
from pod_host.dev.transcripts import Transcripts
from pod_host.dev.turn_start import TurnStarts, descriptor
from pod_host.dev.uploads import Uploads
from pod_host.dev.wakes import Wakes
from pod_host.dev.workspaces import Workspaces

log = logging.getLogger(__name__)
__all__ = ["Runtime", "RuntimeConfig"]


class Runtime:
    """``start`` opens the four ports and goes on from ``state_dir``; ``stop`` gives runs back and closes them."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        self._life = AsyncExitStack()

    @property
    def harness_url(self) -> str:
        return self._harness.url

    @property
    def gates_url(self) -> str:
        return self._gates.url

    @property
    def egress_url(self) -> str:
        return self._egress.url

    @property
    def north_url(self) -> str:
        return self._north.url

    @property
    def join_file(self) -> Path:
        return self._sandbox.join_file

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.id

    async def start(self) -> None:
        """Raises ConfigurationError: a state directory that cannot be used, a port that is taken."""
        try:
            await self._start()
        except BaseException:  # whatever it was, ports and the state directory are free again
            await self._life.aclose()
            raise

    async def stop(self) -> None:
        await self._life.aclose()

    async def _start(self) -> None:
        config = self._config
        db = Database(config.state_dir)
        self._life.callback(db.close)
        sockets = {name: self._listen(db, name) for name in ("harness", "gates", "egress", "north")}
        tenant_id = db.get("tenantId") or f"tnt_{secrets.token_hex(6)}"
        db.set("tenantId", tenant_id)
        record = Record(db)
        authority = Authority(config.state_dir / "keys", tenant_id)
        self._sandbox = Sandbox(config, db, record, authority)
        definitions = Definitions(db, config.state_dir)
        self._definition = definitions.put(config.agent)
        transcripts = Transcripts(db)
        sessions = Sessions(db, record, definitions, self._definition, transcripts)
        leases = Leases(config, db, record, authority, sessions)
        memories = Memories(db, sessions)
        wakes = Wakes(db, record, sessions)
        core_tools = {"memory": memories.call, "schedule_wake": wakes.call}
        journal = Journal(config, db, record, authority, sessions, leases, core_tools)
        outputs = Outputs(config, db, record, authority, sessions, transcripts, leases)
        artifacts = Artifacts(config, db, record)
        uploads = Uploads(config, db, record, artifacts)
        starts = TurnStarts(config, self._sandbox.id, sessions, transcripts, journal, memories)
        models = ModelGate(config, db, artifacts)
        tools = ToolGate(config, db)
        leases.start_of = starts.build
        leases.on_over.append(uploads.run_over)
        sessions.on_ready = leases.advance
        journal.gate_knows = lambda effect_id: models.knows(effect_id) or tools.knows(effect_id)
        service = Service(
            config=config,
            tenant_id=tenant_id,
            db=db,
            record=record,
            authority=authority,
            sandbox=self._sandbox,
            definitions=definitions,
            sessions=sessions,
            transcripts=transcripts,
            leases=leases,
            journal=journal,
            outputs=outputs,
            artifacts=artifacts,
            uploads=uploads,
        )
        self._tenant_id = tenant_id
        self._harness = HarnessListener(config, sockets["harness"], record, authority, self._sandbox, leases, service)
        self._gates = Gates(config, sockets["gates"], record, authority, sessions, leases, journal, models, tools)
        interception = Interception(authority, config.agent.environment_secrets, os.environ, config.egress_upstream_ca)
        self._egress = EgressProxy(config, sockets["egress"], record, self._sandbox, self._current, interception)
        workspaces = Workspaces(authority, sessions, starts, self._harness.workspace_connection)
        self._north = North(
            sockets["north"],
            record,
            sessions,
            transcripts,
            journal,
            models,
            workspaces,
            status=self.status,
            cancel=lambda session_id, reason: cancel_turn(sessions, leases, db, session_id, reason),
        )
        # Stopped in the opposite order: runs are given back while the gates still answer, and the record is read to its end.
        self._life.push_async_callback(self._north.stop)
        self._life.callback(record.close)
        self._life.push_async_callback(self._egress.stop)
        self._life.push_async_callback(self._gates.stop)
        for watch in (leases.watch, wakes.watch):
            task = asyncio.create_task(_keep(watch))
            self._life.push_async_callback(_end, task)
        self._life.push_async_callback(self._harness.stop)
        for part in (self._gates, self._egress, self._north, self._harness):
            await part.start()

    def status(self) -> JsonObject:
        return {
            "tenantId": self._tenant_id,
            "sandboxId": self._sandbox.id,
            "harnessId": self._config.agent.harness_id,
            "host": {
                "joined": self._sandbox.epoch > 0,
                "connected": self._harness.connected,
                "epoch": self._sandbox.epoch,
                "podUid": self._sandbox.pod_uid,
            },
            "model": descriptor(self._config),
            "urls": {
                "harness": self.harness_url,
                "gates": self.gates_url,
                "egress": self.egress_url,
                "north": self.north_url,
            },
            "joinFile": str(self.join_file),
        }

    def _current(self) -> Definition:
        return self._definition

    def _listen(self, db: Database, name: str) -> socket.socket:
        host = "127.0.0.1" if name == "north" else self._config.host  # the north API has no password
        port: int = getattr(self._config, f"{name}_port")
        made = listen(db, name, host, port)
        self._life.callback(made.close)
        return made


def cancel_turn(sessions: Sessions, leases: Leases, db: Database, session_id: str, reason: str) -> None:
    """Cancel the session's turn, or let it pass its deadline. Raises NorthRefusal when there is none."""
    turn = sessions.active_turn(sessions.row(session_id)["id"])
    if turn is None:
        raise NorthRefusal(409, "no_turn", "no turn of this session is under way")
    with db.transaction():
        if reason == "cancel":
            sessions.end_turn(turn["id"], "cancelled")
            leases.cancel(turn["id"], "cancel")
        elif not leases.cancel(turn["id"], "deadline", PAST_DEADLINE["message"]):
            sessions.end_turn(turn["id"], "failed", error=PAST_DEADLINE)


async def _keep(watch: Callable[[], Awaitable[None]]) -> None:
    """A watch that fails (a full disk, say) is begun again: without it no lease would lapse and no wake would come."""
    while True:
        try:
            await watch()
        except Exception:  # whatever it was, it is told and tried again
            log.exception("a watch failed; it begins again")
            await asyncio.sleep(1.0)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
