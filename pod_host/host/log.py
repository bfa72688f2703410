"""Structured logs on stderr: one event a line, as JSON or as text, repeated troubles thinned, never a token.

    log = get_log()
    log.info("setup.step", step=2, of=5, what="make deps")

Event names are stable; tools may match on them:

    settings.misspelt                                 a variable that looks like a setting and is none
    gate.waiting gate.open gate.passed gate.failed gate.off    the network gate
    join.done join.refused join.unavailable           host/join, and what keeps it from being asked
    renew.done renew.refused renew.unavailable        host/renew
    trust.written trust.invalid                       the bundle of CA certificates
    channel.connected channel.closed channel.refused channel.hello_refused
    setup.started setup.step setup.output setup.done setup.failed setup.ignored setup.log_unwritten
    lease.granted lease.unreadable lease.failed lease.lost lease.renew_failed
    turn.cancelled turn.ended turn.crashed turn.unreported
    workspace.call event.refused
    worker.started worker.lost worker.failed          the process that runs commands
    confinement.report                                what the kernel leaves exposed
    watchdog.stuck                                    the event loop stands still: exit 70
    shutdown.started shutdown.late shutdown.done shutdown.forced
    host.fault                                        a bug that the host survives, with its stack
    log.line                                          a message of a library

What the events of a setup carry: ``of`` (how many steps), ``step`` (from 1), ``what`` (a path, a command or its name); those
that end a step also ``durationMs``, ``exitCode`` of a command, ``output`` (its end), and a failure its ``reason``.

A warning or an error that comes again with the same words is shown the 1st, 2nd, 4th, 8th … time, with ``leftOut``, how
many were not shown since the last that was; after ten minutes without it, it counts as new.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from pod_host.settings import LogFormat, LogLevel

LOGGER: Final = "pod_host"
FORGET_SECONDS: Final = 600.0  # a trouble not seen for so long is new when it comes back
KINDS: Final = 256  # of troubles remembered; the least recent goes first
REDACTED: Final = "[token redacted]"

_SIGNED: Final = re.compile(r"eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*")
_BEARER: Final = re.compile(r"(?i)\bbearer\s+\S+")


class Redactor:
    """The last line of defence: nothing that is held as a secret, and nothing that looks like a signed token, leaves."""

    MOST: Final = 64  # secrets held; old tokens are signed ones, which the pattern knows
    LEAST_CHARACTERS: Final = 8  # a shorter one is no secret, and would tear holes into every word

    def __init__(self) -> None:
        self._held: OrderedDict[str, None] = OrderedDict()

    def hold(self, secret: str) -> None:
        if len(secret) >= self.LEAST_CHARACTERS:
            self._held[secret] = None
            self._held.move_to_end(secret)
            if len(self._held) > self.MOST:
                self._held.popitem(last=False)

    def clean(self, text: str) -> str:
        for secret in self._held:
            text = text.replace(secret, REDACTED)
        return _BEARER.sub(REDACTED, _SIGNED.sub(REDACTED, text))

    def clean_value(self, value: Any) -> Any:
        """The same for any value of a field, keeping its shape."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(str(name)): self.clean_value(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean_value(inner) for inner in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.clean(str(value))


redactor: Final = Redactor()


class Log:
    """Writes events. ``fields`` are JSON values; None is left out."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, fault: BaseException | None = None, **fields: Any) -> None:
        """``fault``: its traceback goes with the event."""
        self._write(logging.ERROR, event, fields, fault)

    def _write(self, level: int, event: str, fields: dict[str, Any], fault: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            told = {name: value for name, value in fields.items() if value is not None}
            self._logger.log(level, "%s", event, extra={"event": event, "fields": told}, exc_info=fault)


def get_log() -> Log:
    return Log(logging.getLogger(LOGGER))


def configure(level: LogLevel, log_format: LogFormat | None, stream: TextIO | None = None) -> None:
    """Send every event, and what libraries warn of, to ``stream`` (stderr). Called once, before the first event."""
    stream = stream or sys.stderr
    chosen = log_format or ("text" if stream.isatty() else "json")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_TextLines() if chosen == "text" else _JsonLines())
    handler.addFilter(Thinning())
    logging.raiseExceptions = False  # a reader of stderr that went away is no reason to fail
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level.upper())


def finish() -> None:
    """Before the process ends: a stderr that nobody reads any more must not change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Thinning(logging.Filter):
    """Lets a repeated warning or error pass at growing distances."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: OrderedDict[tuple[str, ...], _Repeats] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        fields: dict[str, Any] = getattr(record, "fields", {})
        words = sorted(f"{name}={value}" for name, value in fields.items() if isinstance(value, str))
        kind = (record.getMessage(), *words)
        now = time.monotonic()
        repeats = self._seen.get(kind)
        if repeats is None or now - repeats.last > FORGET_SECONDS:
            repeats = self._seen[kind] = _Repeats()
        self._seen.move_to_end(kind)
        if len(self._seen) > KINDS:
            self._seen.popitem(last=False)
        repeats.last = now
        repeats.count += 1
        if repeats.count < repeats.next_shown:
            return False
        if left_out := repeats.count - repeats.shown - 1:
            record.fields = {**fields, "leftOut": left_out}
        repeats.shown = repeats.count
        repeats.next_shown = repeats.count * 2
        return True


class _Repeats:
    def __init__(self) -> None:
        self.count = 0
        self.shown = 0  # the count at the last that was shown
        self.next_shown = 1
        self.last = 0.0  # monotonic


class _JsonLines(logging.Formatter):
    """``{"at", "level", "event", …fields}``."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _told(record)
        line = {"at": _time(record), "level": record.levelname.lower(), "event": event, **fields}
        if record.exc_info:
            line["traceback"] = redactor.clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=True, separators=(",", ":"))


class _TextLines(logging.Formatter):
    """``12:30:01 setup.step step=2 of=5 what="make deps"``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _told(record)
        words = [_time(record)[11:19], *([] if record.levelno <= logging.INFO else [record.levelname.lower()]), event]
        words += [f"{name}={_word(value)}" for name, value in fields.items()]
        line = " ".join(words)
        if record.exc_info:
            line += "\n" + redactor.clean(self.formatException(record.exc_info))
        return line


def _told(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    event: str | None = getattr(record, "event", None)
    fields: dict[str, Any] = getattr(record, "fields", {})
    if event is None:  # a library's own message
        event, fields = "log.line", {"logger": record.name, "message": record.getMessage(), **fields}
    return event, {name: redactor.clean_value(value) for name, value in fields.items()}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\w./:@+-]+", value):
        return value
    words = json.dumps(value, ensure_ascii=False)
    return words if words.isprintable() else json.dumps(value)  # no terminal obeys a peer's text
