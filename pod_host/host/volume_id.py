"""The volume's own id (Harness API v5, section 9): how the Runtime tells a volume that was recreated empty.

Made once, when the file is not there. A file that is there and cannot be read keeps the host from joining: with a new id the
Runtime would declare the sandbox lost, and only a reset would bring it back.
"""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from pod_host.errors import VolumeIdError
from pod_host.host import files

NAME = "volume-id"
_MOST_BYTES = 256
_FORM = re.compile(r"[A-Za-z0-9-]{1,64}")


def read_or_make(harness_dir: Path) -> str:
    """The id in ``<harness dir>/volume-id``, on the disk before it is returned. Raises VolumeIdError, also when the
    directory is not there: it was made at the start, so the volume has gone."""
    path = harness_dir / NAME
    try:
        content = files.read_small(path, _MOST_BYTES)
    except FileNotFoundError:
        return _make(path)
    except OSError as fault:
        raise VolumeIdError(f"{path} cannot be read: {fault.strerror or fault}") from fault
    text = content.decode("ascii", "replace").strip()
    if not _FORM.fullmatch(text):
        raise VolumeIdError(
            f"{path} holds no volume id (letters, digits and hyphens); restore it, or reset the sandbox"
        )
    return text


def _make(path: Path) -> str:
    made = str(uuid.uuid4())
    try:
        files.replace(path, f"{made}\n".encode(), 0o600, durable=True)
    except OSError as fault:
        raise VolumeIdError(f"{path} cannot be written: {fault.strerror or os.strerror(fault.errno or 0)}") from fault
    return made
