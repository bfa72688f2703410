"""What the log writes: one event a line, thinned when it repeats, never a token."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pod_host.host import log as logs

JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzYngifQ.c2lnbmF0dXJl"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(logs.LOGGER)
    before = (root.handlers[:], root.level, ours.level, logging.raiseExceptions)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.raiseExceptions = before[3]


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    logs.get_log().info("setup.step", step=2, of=5, what="echo\nhi", exitCode=None)
    (line,) = written(stream)
    assert line.pop("at").endswith("Z")
    assert line == {"level": "info", "event": "setup.step", "step": 2, "of": 5, "what": "echo\nhi"}


def test_text_is_one_line_too() -> None:
    logs.configure("info", "text", stream := io.StringIO())
    logs.get_log().warning("setup.failed", what="make deps\nnow", step=1)
    (line,) = stream.getvalue().splitlines()
    assert line[8:] == ' warning setup.failed what="make deps\\nnow" step=1'


def test_levels_below_the_chosen_one_are_silent() -> None:
    logs.configure("warning", "json", stream := io.StringIO())
    logs.get_log().info("join.done")
    assert stream.getvalue() == ""


def test_a_signed_token_and_a_held_secret_never_leave() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    logs.redactor.hold("opaque-join-token")
    log = logs.get_log()
    log.info("a", output=f"HTTPS_PROXY=http://nylorun:{JWT}@10.0.0.1:1", nested={"list": ["opaque-join-token"]})
    log.info("b", header="Authorization: Bearer abc.def")
    try:
        raise ValueError(f"refused {JWT}")
    except ValueError as fault:
        log.error("c", fault=fault)
    text = stream.getvalue()
    assert JWT not in text
    assert "opaque-join-token" not in text
    assert "abc.def" not in text
    assert "http://nylorun:[token redacted]@10.0.0.1:1" in text
    assert "ValueError" in written(stream)[2]["traceback"]


def test_a_repeated_trouble_is_thinned_and_says_how_often_it_was_left_out() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    log = logs.get_log()
    for attempt in range(20):
        log.warning("join.refused", status=401, reason="The join was refused", attempt=attempt)
    lines = written(stream)
    assert [line["attempt"] for line in lines] == [0, 1, 3, 7, 15]
    assert [line.get("leftOut") for line in lines] == [None, None, 1, 3, 7]


def test_other_words_are_another_trouble() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    log = logs.get_log()
    for reason in ("a", "b", "a", "b", "a"):
        log.warning("join.refused", reason=reason)
    assert [line["reason"] for line in written(stream)] == ["a", "b", "a", "b"]


def test_what_is_no_trouble_is_never_thinned() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    for _ in range(5):
        logs.get_log().info("channel.connected")
    assert len(written(stream)) == 5


def test_a_librarys_warning_comes_in_the_same_form() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    logging.getLogger("some.library").warning("odd: %s", JWT)
    (line,) = written(stream)
    assert line["event"] == "log.line"
    assert line["message"] == "odd: [token redacted]"


def test_half_a_surrogate_pair_in_an_output_is_no_obstacle() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    logs.get_log().info("setup.output", output="\ud83d")
    assert written(stream)[0]["output"] == "\ud83d"
