# ruff: noqa: PT017 - what is said of a refusal is a property here
"""Tool arguments: refused with every fault named, or a call on a real directory that writes nowhere else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.errors import ContractViolation, InvalidToolInput
from pod_host.sandbox.outcomes import Completed, Failed
from pod_host.sandbox.tools.inputs import TOOL_INPUTS, parse_input
from pod_host.sandbox.tools.running import FILE_TOOLS, Workspace, run_file_tool
from pod_host.sandbox.tools.workspace import SearchRun
from tests.fuzz import hostile
from tests.fuzz.source import Source, pick

_INPUTS: Sequence[tuple[str, JsonObject]] = (
    ("bash", {"command": "ls", "timeout": 5}),
    ("read", {"path": "a", "offset": 1, "limit": 10}),
    ("read", {"path": "d"}),
    ("write", {"path": "d/new", "content": "x"}),
    ("edit", {"path": "a", "old_string": "two", "new_string": "2", "replace_all": True}),
    ("grep", {"pattern": "x", "path": "a", "glob": "*.py", "ignore_case": True, "max_results": 5}),
    ("glob", {"pattern": "**/*", "path": "d"}),
    ("glob", {"pattern": "{a,b}[!c-]?*"}),
)


def _no_search(argv: Sequence[str], *, cwd: str, timeout_seconds: float) -> AbstractContextManager[SearchRun]:
    assert not any("\0" in argument for argument in argv)
    raise FileNotFoundError(2, "no program here")


def run(source: Source) -> None:
    tool, good = pick(source, _INPUTS)
    try:
        value = decode(hostile.json_text(source, good))
    except ContractViolation:
        return
    try:
        checked = parse_input(tool, value).for_worker()
    except InvalidToolInput as refusal:
        assert refusal.issues
        encode([dict(issue) for issue in refusal.issues])
        return
    assert checked.keys() <= TOOL_INPUTS[tool].model_fields.keys()
    if tool in FILE_TOOLS:
        with tempfile.TemporaryDirectory(prefix="pod-host-fuzz-") as directory:
            _called(tool, checked, Path(directory))


def _called(tool: str, checked: JsonObject, outer: Path) -> None:
    root = outer / "workspace"
    (root / "d").mkdir(parents=True)
    (root / "a").write_bytes(b"one\r\ntwo\r\n\xff\n")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "d" / "pipe")
    workspace = Workspace(str(root), _no_search, None)
    if not _stays(checked, root):
        return  # no text of a path is refused by the tools: what may be reached is the kernel's business
    outcome = run_file_tool(tool, checked, workspace)
    assert {entry.name for entry in outer.iterdir()} == {"workspace"}
    match outcome:
        case Completed(output):
            encode(output)
        case Failed(code, message):
            assert code.startswith(("sandbox.", "tool."))
            message.encode()


def _stays(checked: JsonObject, root: Path) -> bool:
    path: Json = checked.get("path", ".")
    place = os.path.normpath(os.path.join(root, path))
    pattern: Json = checked.get("pattern", "")
    return (place == str(root) or place.startswith(f"{root}/")) and not pattern.startswith("/") and ".." not in pattern
