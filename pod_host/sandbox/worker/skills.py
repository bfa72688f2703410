"""Skills on disk: folders that are written once, whole, and that commands read and cannot change. Run in a thread, one
mount after another."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pod_host.sandbox.outcomes import Completed, Failed, Outcome

_FILE: Final = 0o444
_DIRECTORY: Final = 0o555


@dataclass(frozen=True, slots=True)
class SkillFolders:
    """``root``: where the folders lie. Ours to write, and for the commands' domain to read."""

    root: str

    def mount(self, folder: str, files: Sequence[tuple[str, int]], content: bytes | memoryview) -> Outcome:
        """Makes ``folder`` of ``files``, (relative path, size) each, whose bytes stand one after another in ``content``. It
        appears whole or not at all; one that is there already is complete, and is left as it is."""
        if not _is_name(folder) or not all(_is_relative(path) for path, _ in files):
            return Failed("sandbox.invalid", f"{folder!r}: a folder's name and relative paths are needed.")
        place = os.path.join(self.root, folder)
        beside = os.path.join(self.root, f".{folder}.tmp")
        try:
            if os.path.isdir(place):
                return Completed({"path": place, "written": False})
            _remove(beside)  # of a mount that was cut off
            os.makedirs(beside)
            _write(beside, files, memoryview(content))
            _close(beside)
            os.rename(beside, place)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            with contextlib.suppress(OSError):
                _remove(beside)
            return Failed("sandbox.write_failed", f"Could not write {place}: {reason}.")
        return Completed({"path": place, "written": True})


def _write(root: str, files: Sequence[tuple[str, int]], content: memoryview) -> None:
    for path, size in files:
        place = os.path.join(root, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, _FILE)
            view, content = content[:size], content[size:]
            while view:
                view = view[file.write(view) :]


def _close(root: str) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        os.chmod(directory, _DIRECTORY)


def _remove(root: str) -> None:
    if not os.path.lexists(root):
        return
    for directory, _, _ in os.walk(root):
        os.chmod(directory, 0o755)
    shutil.rmtree(root)


def _is_name(text: str) -> bool:
    return _is_relative(text) and "/" not in text and not text.startswith(".")


def _is_relative(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))
