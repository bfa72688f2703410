"""Log lines of whatever a peer put into them: one line each, and no secret, however it is wrapped."""

from __future__ import annotations

import io
import json
import logging

from pod_host.host.log import Thinning, _JsonLines, _TextLines, redactor
from tests.fuzz import hostile
from tests.fuzz.source import Source, pick

SECRET = "s3cret-of-the-host"
SIGNED = "eyJhbGciOi.eyJleHAiOjF9.c2ln"
_CONTROLS = {chr(code) for code in (*range(32), *range(0x80, 0xA0), 0x2028, 0x2029)}


def run(source: Source) -> None:
    redactor.hold(SECRET)
    secret = pick(source, (SECRET, SIGNED, f"Bearer {SECRET}"))
    holding = pick(source, (secret, [secret], {secret: secret}, f"a{secret}b\n{secret}", {"a": [{"b": secret}]}))
    fields = {
        "reason": hostile.value(source, 0),
        "output": [hostile.value(source, 0), holding],
        "what": hostile.text(source),
    }
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(_JsonLines() if source.below(2) else _TextLines())
    handler.addFilter(Thinning())
    record = logging.LogRecord("pod_host", logging.WARNING, "", 0, "%s", ("event",), None)
    record.__dict__.update(event="event", fields=fields)
    assert handler.filter(record)
    line = handler.format(record)
    assert not set(line) & _CONTROLS, "a terminal would obey"
    assert SECRET not in line
    assert SIGNED not in line
    if isinstance(handler.formatter, _JsonLines):
        json.loads(line)
