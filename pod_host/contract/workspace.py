"""workspace.*: what core asks of the sandbox (Harness API v5, section 10). The call's members are open in v5's text:
`open_points.read_workspace_call`."""

from __future__ import annotations

from dataclasses import dataclass

from pod_host.contract.base import JsonObject

WORKSPACE_METHODS = (
    "workspace.read",
    "workspace.write",
    "workspace.exec",
    "workspace.report",
    "workspace.sweep",
    "workspace.remove",
)

TOOLS_OF: dict[str, tuple[str, ...]] = {
    "workspace.exec": ("bash",),
    "workspace.read": ("read", "grep", "glob"),
    "workspace.write": ("write", "edit"),
}


@dataclass(frozen=True)
class WorkspaceCall:
    """One tool call on a session's sandbox, from outside a turn. ``owner_id``: the session that owns the sandbox."""

    tool: str
    input: JsonObject
    owner_id: str
    turn_id: str | None
    environment: dict[str, str]
    spec: JsonObject
