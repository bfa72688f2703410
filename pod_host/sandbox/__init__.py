"""The sandbox: files, commands and their confinement, in processes of their own. Knows nothing of Nylorun.

The host uses ``Sandbox``. Names come on demand: the worker imports this package too, and must not load asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .client import Confinement, Pending, Report, Sandbox, SandboxConfig, SandboxProcess
    from .environment import ClientFiles, command_environment
    from .kernel import become_undumpable
    from .outcomes import Completed, Failed, Json, Outcome
    from .requests import (
        TRACEPARENT,
        AppendLog,
        Command,
        ListFolder,
        MountSkill,
        PutFile,
        ReadBytes,
        Request,
        ToolCall,
    )

_HOMES: Final = {
    "client": ("Confinement", "Pending", "Report", "Sandbox", "SandboxConfig", "SandboxProcess"),
    "environment": ("ClientFiles", "command_environment"),
    "kernel": ("become_undumpable",),
    "outcomes": ("Completed", "Failed", "Json", "Outcome"),
    "requests": (
        "TRACEPARENT",
        "AppendLog",
        "Command",
        "ListFolder",
        "MountSkill",
        "PutFile",
        "ReadBytes",
        "Request",
        "ToolCall",
    ),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "TRACEPARENT",
    "AppendLog",
    "ClientFiles",
    "Command",
    "Completed",
    "Confinement",
    "Failed",
    "Json",
    "ListFolder",
    "MountSkill",
    "Outcome",
    "Pending",
    "PutFile",
    "ReadBytes",
    "Report",
    "Request",
    "Sandbox",
    "SandboxConfig",
    "SandboxProcess",
    "ToolCall",
    "become_undumpable",
    "command_environment",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
