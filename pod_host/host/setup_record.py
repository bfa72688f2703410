"""What is known of a volume's setup: ``<harness dir>/setup.json``, 0600, on the disk before a step begins.

It holds the whole setup while steps are left: the Runtime sends it with a new disk's join, and need not send it again after a
crash.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pod_host.contract.base import Json
from pod_host.errors import PodHostError
from pod_host.host import files

NAME = "setup.json"
_MOST_BYTES = 256 * 1024 * 1024  # a join's answer is no larger, with room to spare

State = Literal["running", "done", "failed", "seeded"]


class SetupRecordError(PodHostError):
    """The record is there and cannot be read, or cannot be written. What ran of the setup is then unknown."""

    code = "setup_record"


class StepResult(BaseModel):
    """A step that is over. ``output``: the end of what it printed, only of the one that failed."""

    model_config = ConfigDict(frozen=True)

    what: str
    exit_code: int | None = None
    duration_ms: int
    reason: str | None = None
    output: str = ""


class SetupRecord(BaseModel):
    """``hash`` is the setup's. ``over`` are the steps that need not run again, in order; in a failed setup the last is
    the one that failed. ``setup`` is null when no step is left."""

    model_config = ConfigDict(frozen=True)

    state: State
    hash: str
    setup: Json = None
    over: tuple[StepResult, ...] = ()
    steps: int = 0


def load(harness_dir: Path) -> SetupRecord | None:
    """None: nothing is known of a setup of this volume. Raises SetupRecordError."""
    path = harness_dir / NAME
    try:
        return SetupRecord.model_validate(json.loads(files.read_small(path, _MOST_BYTES)))
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise SetupRecordError(f"{path} cannot be read: {fault}") from fault
    except (ValueError, RecursionError):  # pydantic's own is a ValueError
        raise SetupRecordError(f"{path} is no record of a setup") from None


def save(harness_dir: Path, record: SetupRecord) -> None:
    """Durable on return. Raises SetupRecordError."""
    path = harness_dir / NAME
    try:
        # Not pydantic's writer: the standard library's keeps half a surrogate pair, as any JSON text may hold it.
        files.replace(path, json.dumps(record.model_dump()).encode("ascii"), 0o600, durable=True)
    except OSError as fault:
        raise SetupRecordError(f"{path} cannot be written: {fault}") from fault
