"""How a tool runs, by its name. Of the worker: the standard library alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pod_host.sandbox.outcomes import Completed, Failed, Json, Outcome
from pod_host.sandbox.tools.bash import shape_bash
from pod_host.sandbox.tools.edit import edit_file
from pod_host.sandbox.tools.glob import glob_files
from pod_host.sandbox.tools.grep import grep_files
from pod_host.sandbox.tools.names import outcome_as_shown
from pod_host.sandbox.tools.read import read_file
from pod_host.sandbox.tools.workspace import ToolFailure, Workspace
from pod_host.sandbox.tools.write import write_file

__all__ = ["FILE_TOOLS", "Workspace", "run_file_tool", "shape_bash"]

FILE_TOOLS: Final[Mapping[str, Callable[..., Completed]]] = {
    "read": read_file,
    "write": write_file,
    "edit": edit_file,
    "grep": grep_files,
    "glob": glob_files,
}
"""Every tool but bash, by its name: a function of the workspace and of its input's members."""


def run_file_tool(tool: str, tool_input: Mapping[str, Json], workspace: Workspace) -> Outcome:
    """Runs one of FILE_TOOLS. Blocks: its caller is a thread. ``KeyError`` for another name.

    ``tool_input`` was checked against the tool's model in ``inputs`` (members left out take their defaults). Every
    problem that can be told is ``Failed``; an exception is a fault of ours.
    """
    try:
        outcome: Outcome = FILE_TOOLS[tool](workspace, **tool_input)
    except ToolFailure as failure:
        outcome = Failed(failure.code, failure.message)
    return outcome_as_shown(outcome)
