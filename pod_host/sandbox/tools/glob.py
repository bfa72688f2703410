"""The tool glob: files whose path matches a pattern, found by ripgrep's walk or, without ripgrep, by one of our own."""

from __future__ import annotations

import codecs
import os
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from pod_host.limits import GLOB_FILES, GLOB_SHOWN, SEARCH_SECONDS
from pod_host.sandbox.outcomes import Completed
from pod_host.sandbox.tools.globbing import MAGIC, BadGlob, Glob
from pod_host.sandbox.tools.names import find_shown
from pod_host.sandbox.tools.opening import utf8
from pod_host.sandbox.tools.workspace import ToolFailure, Workspace

_utf_16: Final = codecs.getencoder("utf-16-be")  # looked up now: later, its module may lie where the worker cannot read
_BATCH: Final = 100  # names that are matched before the time is looked at
_TOO_LONG: Final = f"the search ended after {SEARCH_SECONDS:g} s"


@dataclass(slots=True)
class _Walk:
    """What was found, and why the walk ended early, if it did."""

    found: list[str]
    ended_by: str | None = None


def glob_files(workspace: Workspace, pattern: str, path: str | None = None) -> Completed:
    """Absolute paths of the regular files below ``path`` that match, sorted by UTF-16 unit, one a line, 500 at most.

    Hidden and ignored files are found when the pattern asks for them; below ``.git`` only when it names it. Links are
    not followed, but for those that the pattern begins with. Raises ``ToolFailure``: ``sandbox.glob_failed``, and
    ``sandbox.not_found`` for a root that is none.
    """
    utf8(pattern, "pattern")
    root = find_shown(workspace.resolve(path or "."))
    try:
        if not stat.S_ISDIR(os.stat(root).st_mode):
            raise ToolFailure("sandbox.glob_failed", f"{root} is not a directory.")
    except (FileNotFoundError, NotADirectoryError):
        raise ToolFailure("sandbox.not_found", f"No directory at {root}") from None
    except OSError as error:
        raise ToolFailure("sandbox.glob_failed", f"{root}: {error.strerror}") from None
    if pattern.startswith(("/", "./", "../")):
        return Completed(f"No files matched. A pattern is relative to {root}: it begins with a name or a wildcard.")
    try:
        glob = Glob(pattern)
    except BadGlob as error:
        raise ToolFailure("sandbox.glob_failed", f"The pattern cannot be used: {error}.") from None
    within = _named_directories(pattern)
    start = os.path.join(root, within)
    # Without the directory that the pattern begins with, nothing matches.
    walk = _matching(workspace, glob, start, within) if os.path.isdir(start) else _Walk([])
    return Completed(_text(root, walk))


def _named_directories(pattern: str) -> str:
    """The directories that the pattern names at its start, ``""`` or ending in ``/``: the walk begins below them."""
    named: list[str] = []
    for name in pattern.split("/")[:-1]:
        if name in ("", ".", "..") or MAGIC.search(name):
            break
        named.append(name + "/")
    return "".join(named)


def _matching(workspace: Workspace, glob: Glob, start: str, within: str) -> _Walk:
    """The files below ``start`` that match, relative to the root: ``within`` is put before each."""
    walk = _Walk([])
    deadline = time.monotonic() + SEARCH_SECONDS
    try:
        with closing(_below(workspace, start, walk)) as batches:
            for names in batches:
                walk.found += glob.matching([within + name for name in names] if within else names)
                if len(walk.found) >= GLOB_FILES:
                    del walk.found[GLOB_FILES:]
                    walk.ended_by = f"the search ended at {GLOB_FILES} files"
                    break
                if time.monotonic() > deadline:  # ripgrep's own time is not ours: a pattern may take long to match
                    walk.ended_by = _TOO_LONG
                    break
    except OSError as error:
        raise ToolFailure(
            "sandbox.glob_failed", f"The search could not be started: {error.strerror or error}"
        ) from None
    return walk


def _below(workspace: Workspace, start: str, walk: _Walk) -> Generator[list[str], None, None]:
    """Every regular file below ``start`` but those below a ``.git``, relative to it, some at a time; names not UTF-8 with
    U+FFFD."""
    if workspace.ripgrep is None:
        yield from _own_walk(start)
        return
    arguments = [workspace.ripgrep, "--no-config", "--no-ignore", "--hidden", "--files", "--null", "--sort=path"]
    with workspace.run_search([*arguments, "--glob=!.git/"], cwd=start, timeout_seconds=SEARCH_SECONDS) as run:
        for names in _names(run):
            for first in range(0, len(names), _BATCH):
                yield names[first : first + _BATCH]
        end = run.end()
        if end.timed_out:
            walk.ended_by = _TOO_LONG
        elif end.exit_code > 2:  # 2 is for directories that may not be read
            walk.ended_by = f"the search was ended, exit code {end.exit_code}"


def _names(pieces: Iterable[bytes]) -> Iterator[list[str]]:
    """The names of a stream in which a NUL ends each."""
    kept = b""
    for piece in pieces:
        whole, _, kept = (kept + piece).rpartition(b"\0")
        if whole:
            yield whole.decode("utf-8", "replace").split("\0")


def _own_walk(start: str) -> Iterator[list[str]]:
    """The same without ripgrep. A directory that cannot be read is passed over, as ripgrep does."""
    waiting = [b""]
    base = os.fsencode(start)
    while waiting:
        below = waiting.pop()
        try:
            entries = sorted(os.scandir(os.path.join(base, below)), key=lambda entry: entry.name)
        except OSError:
            continue
        names = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != b".git":
                    waiting.append(os.path.join(below, entry.name))
            elif entry.is_file(follow_symlinks=False):
                names.append(os.path.join(below, entry.name).decode("utf-8", "replace"))
        yield names


def _text(root: str, walk: _Walk) -> str:
    early = f" ({walk.ended_by})" if walk.ended_by is not None else ""
    if not walk.found:
        return f"No files matched{early}."
    plain = all(map(str.isascii, walk.found))
    found = sorted(walk.found, key=None if plain else lambda path: _utf_16(path, "surrogatepass"))
    shown = [os.path.join(root, path).replace("\n", "\\n") for path in found[:GLOB_SHOWN]]
    omitted = len(found) - len(shown)
    if omitted:
        shown.append(f"… {'at least ' if early else ''}{omitted} more files omitted{early}; narrow the pattern.")
    elif early:
        shown.append(f"… more files may match{early}; narrow the pattern.")
    return "\n".join(shown)
