"""What the host may ask of the worker. Each request belongs to a session; submission order is arrival order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pod_host.sandbox.frames import Header

TRACEPARENT: Final = "TRACEPARENT"  # the one variable that each call has its own value of
_MOUNTS: Final = ":skills"  # the order that mounts share; no session's id


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One of the six tools (bash, read, write, edit, grep, glob), as the model called it. ``environment`` is the whole
    environment of a bash command, not to be changed any more; the others do not look at it."""

    session: str
    tool: str
    input: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Command:
    """A command that no model wrote (setup). Answered as bash is; ``timeout_seconds`` has no upper limit."""

    session: str
    command: str
    cwd: str
    environment: Mapping[str, str]
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class PutFile:
    """A whole file, written beside its place and renamed into it. ``path`` is relative to the workspace or lies in it;
    parents are made. ``mode`` defaults to 0644. Output: ``{"path": absolute, "bytes": n}``."""

    session: str
    path: str
    content: bytes
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class AppendLog:
    """Text at the end of a file in the commands' home. Output: ``{"path": absolute}``."""

    session: str
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """At most ``length`` bytes of a regular file from ``offset``. Output: ``{"bytes": bytes, "size": whole size}``."""

    session: str
    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ListFolder:
    """The regular files below a directory, links and special files left out; one that is not there, or is a link, has none.
    ``most``: files after which the walk ends. Output: ``{"bytes": JSON of [[path below it, size], …] by path, "more":
    whether there are others}``: a path may hold surrogate escapes. The size is null of what may not be looked at: a
    directory below it, whose path ends in a slash then, or a file in one."""

    session: str
    path: str
    most: int


@dataclass(frozen=True, slots=True)
class MountSkill:
    """A folder of files below the skills directory, read-only: it appears whole or not at all, and one that is there is
    left as it is. ``files``: relative path to bytes. It belongs to no session: mounts come one after another, and no
    session's calls wait for them. Output: ``{"path": absolute, "written": whether it was not there}``."""

    folder: str
    files: Mapping[str, bytes]


Request: TypeAlias = ToolCall | Command | PutFile | AppendLog | ReadBytes | ListFolder | MountSkill


def encode_request(request: Request) -> tuple[Header, bytes]:
    """Header (without the call's id) and body."""
    if isinstance(request, MountSkill):
        sizes = [[path, len(content)] for path, content in request.files.items()]
        return {
            "session": _MOUNTS, "do": "mount_skill", "folder": request.folder, "files": sizes,
        }, b"".join(request.files.values())  # fmt: skip
    common = {"session": request.session}
    match request:
        case ToolCall():
            environment = {"environment": request.environment} if request.tool == "bash" else {}
            return {
                **common, "do": "tool", "tool": request.tool, "input": dict(request.input), **environment,
            }, b""  # fmt: skip
        case Command():
            return {
                **common, "do": "command", "command": request.command, "cwd": request.cwd,
                "environment": request.environment, "timeout_seconds": request.timeout_seconds,
            }, b""  # fmt: skip
        case PutFile():
            return {**common, "do": "put_file", "path": request.path, "mode": request.mode}, request.content
        case AppendLog():
            return {**common, "do": "append_log", "path": request.path, "text": request.text}, b""
        case ReadBytes():
            return {
                **common, "do": "read_bytes", "path": request.path, "offset": request.offset, "length": request.length,
            }, b""  # fmt: skip
        case ListFolder():
            return {**common, "do": "list_folder", "path": request.path, "most": request.most}, b""
