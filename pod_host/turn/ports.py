"""What a turn is given: its run, the gates, a sandbox. Protocols: `client.Run` and `client.Gates` fit them as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pod_host.client.room import Claim
from pod_host.contract.base import JsonObject, Sent
from pod_host.contract.work import RenewResult, RunGrant
from pod_host.sandbox.outcomes import Outcome


class RunPort(Protocol):
    """One leased run, on the connection that leased it."""

    @property
    def grant(self) -> RunGrant: ...

    @property
    def token(self) -> str:
        """The current run token; it changes with renewals, so read it for every call."""
        ...

    async def request(self, method: str, params: Sent) -> Any:
        """The method's result model. Raises RuntimeRefusal; ChannelClosed when the connection went."""
        ...

    async def renew(self) -> RenewResult:
        """Keep the run, and take its new token when one comes. Raises as `request`."""
        ...


class GatePort(Protocol):
    def claim(self) -> Claim:
        """Room for the answers of a call, until the block ends that it is opened for."""
        ...

    async def call(
        self,
        path: str,
        body: bytes,
        *,
        key: str,
        token: Callable[[], str],
        traceparent: str | None = None,
        claim: Claim | None = None,
    ) -> JsonObject:
        """POST; a lost hop is sent again under the same key. A large answer is read when the ``claim`` has its room. Raises
        GateRefusal or GateUnavailable."""
        ...

    async def cancel(self, path: str, *, key: str, token: Callable[[], str]) -> None:
        """Tell the gate to stop the call under ``key``. Bounded, never raises."""
        ...


class SandboxCall(Protocol):
    """One tool call that was handed to the sandbox."""

    async def outcome(self) -> Outcome:
        """How it ended. Raises SandboxError when it could not run, WorkerLost when what it did is unknown."""
        ...

    def abort(self) -> None:
        """Kill it, with all that it started; `outcome` then gives what there is, exit code 130."""
        ...


class SandboxPort(Protocol):
    """The sandbox of one session. Calls are ordered among themselves as they are started."""

    @property
    def skills_dir(self) -> str:
        """Where `mount_skill` puts folders."""
        ...

    @property
    def plain_http(self) -> bool:
        """Whether commands reach http:// URLs too: the egress proxy takes none, a relay before it does."""
        ...

    def start(self, tool: str, input: JsonObject, *, traceparent: str | None) -> SandboxCall: ...

    async def read_bytes(self, path: str, offset: int, length: int) -> Outcome:
        """At most ``length`` bytes of a regular file, relative paths from the workspace. Output: ``{"bytes", "size"}``, the
        size that of the whole file. Asked for when it is first awaited, it comes after the session's earlier writers.
        Raises SandboxError."""
        ...

    async def list_folder(self, path: str, most: int) -> Outcome:
        """The regular files below a directory, as `sandbox.ListFolder` says. Raises SandboxError."""
        ...

    def has_skill(self, folder: str) -> bool:
        """Whether it was mounted in this host's life."""
        ...

    async def mount_skill(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Make the folder of these files (relative paths), read-only, whole or not at all; one that is there stays as it
        is. Raises SandboxError."""
        ...
