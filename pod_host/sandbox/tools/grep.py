"""The tool grep: ripgrep over a tree, told apart into matches, trouble and no match.

Where the image has no ripgrep, GNU grep's ``-E`` does it: an older syntax, the order of the directory, the same output.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from pod_host.limits import GREP_RESULTS, LINE_CHARACTERS, SEARCH_SECONDS
from pod_host.sandbox.outcomes import Completed
from pod_host.sandbox.tools.names import find_shown
from pod_host.sandbox.tools.opening import kind_of, utf8
from pod_host.sandbox.tools.workspace import SearchEnd, ToolFailure, Workspace

_KEPT: Final = 4 * LINE_CHARACTERS + 4  # bytes of a line that are kept: UTF-8 needs 4 a character at most


def grep_files(
    workspace: Workspace,
    pattern: str,
    path: str | None = None,
    glob: str | None = None,
    ignore_case: bool = False,
    max_results: int = GREP_RESULTS,
) -> Completed:
    """Lines that match, as ``path:line:text``, sorted by path; of a single file as ``line:text``. One string.

    Everything is searched, hidden and ignored files too, but for ``.git`` (unless named) and binary files. Raises
    ``ToolFailure`` with ``sandbox.grep_failed``.
    """
    if b"\0" in utf8(pattern + (glob or ""), "pattern or glob"):
        raise ToolFailure("sandbox.grep_failed", "A pattern holds no NUL: only text is searched.")
    resolved = workspace.resolve(path or ".")
    absolute = find_shown(resolved)
    many = _is_directory(absolute, path)
    # As it was asked for, since it is printed; but a lone - would be the standard input.
    target = "./-" if path == "-" else absolute if absolute != resolved else path or "."
    arguments = _arguments(workspace.ripgrep, pattern.split("\n"), glob, ignore_case, many, max_results)
    try:
        with workspace.run_search(
            [*arguments, "--", target], cwd=workspace.root, timeout_seconds=SEARCH_SECONDS
        ) as run:
            found: list[str] = []
            for line in _lines(run):
                found.append(_shown(line, many))
                if len(found) > max_results:
                    break
            end = run.end()
    except OSError as error:
        raise ToolFailure(
            "sandbox.grep_failed", f"The search could not be started: {error.strerror or error}"
        ) from None
    if not found:
        return Completed(_none(end))
    text = "\n".join(found[:max_results])
    if len(found) > max_results:
        return Completed(text + "\n… more matches omitted; narrow the search.")
    return Completed(text + _trouble(end))


def _is_directory(absolute: str, path: str | None) -> bool:
    """Whether a tree is searched. Refuses what is neither directory nor file: a FIFO would be waited for."""
    try:
        mode = os.stat(absolute).st_mode
    except OSError as error:
        raise ToolFailure("sandbox.grep_failed", f"{path or absolute}: {error.strerror}") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise ToolFailure("sandbox.grep_failed", f"{path or absolute} is {kind_of(mode)}: only files are searched.")
    return stat.S_ISDIR(mode)


def _arguments(
    ripgrep: str | None, patterns: list[str], glob: str | None, ignore_case: bool, many: bool, max_results: int
) -> list[str]:
    """The search program and its options. Lines of a pattern are alternatives, as they are to every grep."""
    if ripgrep is not None:
        arguments = [ripgrep, "--no-config", "--no-ignore", "--hidden", "--no-heading", "--color=never"]
        arguments += ["--sort=path", "--line-number", "--null", "--with-filename" if many else "--no-filename"]
        if not any("\r" in pattern or "\\r" in pattern for pattern in patterns):
            arguments.append("--crlf")  # $ is before a CRLF then; a pattern that looks for the \r itself is refused
        if glob is not None:
            arguments.append(f"--glob={glob}")
        if glob is None or ".git" not in glob.split("/"):
            arguments.append("--glob=!.git/")
    elif (grep := shutil.which("grep")) is not None:
        arguments = [grep, "-rnEI", "-Dskip", "--color=never", "--null", "-H" if many else "-h", "--exclude-dir=.git"]
        if glob is not None:
            arguments.append(f"--include={glob}")
    else:
        raise ToolFailure("sandbox.grep_failed", "This image has neither ripgrep nor grep.")
    if ignore_case:
        arguments.append("--ignore-case")
    arguments.append(f"--max-count={max_results + 1}")
    arguments += [f"--regexp={pattern}" for pattern in patterns]
    return arguments


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, each with its first bytes alone. Bounded memory, whatever a line's length."""
    kept = bytearray()
    begun = False
    for piece in pieces:
        first, *further = piece.split(b"\n")
        kept += first[: _KEPT - len(kept)]
        begun = begun or bool(first)
        for part in further:
            yield bytes(kept)
            kept[:] = part[:_KEPT]
            begun = bool(part)
    if begun:
        yield bytes(kept)


def _shown(line: bytes, many: bool) -> str:
    """A line of output for the model. The search program ends the path with a NUL: it may hold a colon."""
    if many:
        line = line.replace(b"\0", b":", 1)
    text = line.decode("utf-8", "replace").removesuffix("\r").replace("\0", "\ufffd")
    return text if len(text) <= LINE_CHARACTERS else text[:LINE_CHARACTERS] + "…"


def _none(end: SearchEnd) -> str:
    """The answer without a match, which is an answer only when the search went well."""
    if end.timed_out:
        raise ToolFailure("sandbox.grep_failed", f"Nothing was found within {SEARCH_SECONDS:g} s; narrow the search.")
    message = _message(end)
    if message:
        raise ToolFailure("sandbox.grep_failed", message)
    if end.exit_code > 1:
        raise ToolFailure("sandbox.grep_failed", f"The search was ended (exit code {end.exit_code}); narrow it.")
    return "No matches."


def _trouble(end: SearchEnd) -> str:
    """A note below real matches when not everything was searched."""
    if end.timed_out:
        return f"\n… the search was ended after {SEARCH_SECONDS:g} s; narrow it."
    message = _message(end)
    if message:
        first, *others = message.split("\n")
        return f"\n… not everything could be searched: {first}{f' (and {len(others)} more)' if others else ''}"
    return f"\n… the search was ended (exit code {end.exit_code}); narrow it." if end.exit_code > 2 else ""


def _message(end: SearchEnd) -> str:
    """What the search program complained of, without its name and without advice on options that nobody here has."""
    message = end.stderr.partition("\n\nConsider enabling")[0].strip()
    return "\n".join(line.removeprefix("rg: ").removeprefix("grep: ") for line in message.split("\n"))
