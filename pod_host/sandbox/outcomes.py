"""How a call on the sandbox ends. A leaf of this room: the worker, the tools and the host side all speak it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""Any JSON value: what a tool answers is shaped by the tool, not by this room."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The call ran; ``output`` is its result. A command that exits with 1 has completed too."""

    output: Json


@dataclass(frozen=True, slots=True)
class Failed:
    """The call could not be done. ``code`` is stable, ``message`` is for the model or a person."""

    code: str
    message: str


Outcome: TypeAlias = Completed | Failed
