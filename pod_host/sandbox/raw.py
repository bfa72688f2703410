"""What the worker knows of a command that has ended, before anything is shaped for a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StreamCapture:
    """One output stream. Decoded as UTF-8 without loss across borders; invalid bytes are U+FFFD.

    When ``omitted_characters`` is 0, ``head`` is the whole text and ``tail`` is empty. Otherwise ``head`` and ``tail``
    hold the first and last half of ``limits.STREAM_CHARACTERS`` characters at least (a little more: room for whoever
    cuts at line ends), with ``omitted_characters`` between them. ``spool`` is the path of the file with the bytes
    themselves (up to ``limits.SPOOL_STREAM_BYTES``, from the start), when the text was cut and they could be kept.
    """

    head: str
    tail: str = ""
    omitted_characters: int = 0
    spool: str | None = None


@dataclass(frozen=True, slots=True)
class Living:
    """A process that lives on: its command line for people, and the TCP ports it listens on."""

    pid: int
    command: str
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RawResult:
    """``exit_code`` is what a caller is told: the shell's own, 128 + ``signal`` when one ended it, 124 after a timeout,
    130 after an abort. ``survivors`` are what the command left running, the first ``limits.PROCESSES_NAMED`` of them, and
    ``more_survivors`` counts the others. ``killed_by`` says in words what ended it when it was not its own doing and no
    timeout or abort: the kernel's out-of-memory kill, too many processes. ``notices`` are sentences on what else happened."""

    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    timeout_seconds: float = 0.0
    aborted: bool = False
    stdout: StreamCapture = field(default_factory=lambda: StreamCapture(""))
    stderr: StreamCapture = field(default_factory=lambda: StreamCapture(""))
    survivors: tuple[Living, ...] = ()
    more_survivors: int = 0
    duration_ms: int = 0
    killed_by: str | None = None
    notices: tuple[str, ...] = ()
