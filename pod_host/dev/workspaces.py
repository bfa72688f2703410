"""workspace.*: what core asks of the host's sandbox for a client (Harness API v5, section 10)."""

from __future__ import annotations

from collections.abc import Callable

from pod_host.contract.base import Json, JsonObject
from pod_host.dev.authority import Authority
from pod_host.dev.connection import Connection
from pod_host.dev.sessions import NorthRefusal, Sessions
from pod_host.dev.turn_start import TurnStarts


class Workspaces:
    """``connection`` gives the host that declared the feature, or None. Cancelled: the host is told to give the call up.
    Answers hold no token of ours: a command that prints its proxy variables gives a client nothing."""

    def __init__(
        self,
        authority: Authority,
        sessions: Sessions,
        starts: TurnStarts,
        connection: Callable[[], Connection | None],
    ) -> None:
        self._authority = authority
        self._sessions = sessions
        self._starts = starts
        self._connection = connection

    async def call(self, session_id: str, method: str, tool: str, arguments: JsonObject) -> Json:
        """One tool call on a session's sandbox: its SandboxToolOutcome. Raises NorthRefusal, RuntimeRefusal."""
        self._sessions.row(session_id)
        if self._sessions.active_turn(session_id) is not None:
            raise NorthRefusal(409, "turn_active", "a turn of this session is under way")
        sandbox = self._starts.sandbox(session_id, self._sessions.definition(session_id))
        call: JsonObject = {
            "session": {
                "ownerId": sandbox["ownerId"],
                "environmentId": sandbox["environmentId"],
                "activeTurnId": None,
            },
            "spec": {**sandbox["spec"], "environment": sandbox["environment"]},
            "tool": tool,
            "input": arguments,
        }
        return self._authority.redact(await self._host().ask(method, call, session_id=session_id))

    async def whole(self, method: str, params: JsonObject) -> Json:
        """``report``, ``sweep`` and ``remove``: of the pod, not of a session."""
        return self._authority.redact(await self._host().ask(method, params))

    def _host(self) -> Connection:
        connection = self._connection()
        if connection is None:
            raise NorthRefusal(503, "unavailable", "no connected host serves workspaces")
        return connection
