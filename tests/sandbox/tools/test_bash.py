"""bash: what a model is told of a command that has ended."""

from __future__ import annotations

import signal

import pytest

from pod_host.limits import STREAM_CHARACTERS
from pod_host.sandbox.outcomes import Json
from pod_host.sandbox.raw import Living, RawResult, StreamCapture
from pod_host.sandbox.tools.running import shape_bash

HALF = STREAM_CHARACTERS // 2


def shaped(raw: RawResult) -> dict[str, Json]:
    output = shape_bash(raw).output
    assert isinstance(output, dict)
    return output


def test_the_plain_answer_has_three_members() -> None:
    assert shaped(RawResult(7, stdout=StreamCapture("out\n"), stderr=StreamCapture("err"))) == {
        "exitCode": 7,
        "stdout": "out\n",
        "stderr": "err",
    }
    assert shaped(RawResult(0)) == {"exitCode": 0, "stdout": "", "stderr": ""}


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (
            RawResult(124, signal=signal.SIGKILL, timed_out=True, timeout_seconds=2.0),
            "Command timed out after 2s and was killed.",
        ),
        (RawResult(130, signal=signal.SIGTERM, aborted=True), "Command was aborted and killed."),
        (RawResult(137, signal=signal.SIGKILL), "Command was ended by signal 9, SIGKILL."),
        (RawResult(128 + 40, signal=40), "Command was ended by signal 40."),
        (
            RawResult(137, signal=signal.SIGKILL, killed_by="out of memory"),
            "Command was ended by signal 9, SIGKILL (out of memory).",
        ),
        (RawResult(1, killed_by="out of memory"), "Command was killed (out of memory)."),
    ],
)
def test_an_end_that_was_not_its_own_is_said(raw: RawResult, sentence: str) -> None:
    output = shaped(raw)
    assert output["stderr"] == sentence
    assert output["exitCode"] == raw.exit_code
    assert output.get("timedOut") == (True if raw.timed_out else None)


@pytest.mark.parametrize(("stderr", "expected"), [("x", "x\n"), ("x\n", "x\n"), ("", "")])
def test_the_sentence_has_a_line_of_its_own(stderr: str, expected: str) -> None:
    raw = RawResult(130, aborted=True, stderr=StreamCapture(stderr))
    assert shaped(raw)["stderr"] == f"{expected}Command was aborted and killed."


def test_a_stream_is_whole_up_to_the_limit() -> None:
    output = shaped(RawResult(0, stdout=StreamCapture("x" * STREAM_CHARACTERS)))
    assert output["stdout"] == "x" * STREAM_CHARACTERS
    assert "truncated" not in output


def test_a_longer_one_loses_its_middle_and_names_the_file_with_the_whole() -> None:
    stream = StreamCapture("a" * HALF, "z" * HALF, 170_000, "/tmp/pod-host/1.stdout")
    output = shaped(RawResult(0, stdout=stream))
    assert output["stdout"] == "a" * HALF + "\n… [170000 characters omitted] …\n" + "z" * HALF
    assert output["truncated"] is True
    assert output["stdoutFile"] == "/tmp/pod-host/1.stdout"
    assert "stderrFile" not in output


@pytest.mark.parametrize(
    "stream",
    [
        StreamCapture("a" * (HALF + 7) + "m" * 11 + "z" * (HALF + 3)),
        StreamCapture("a" * (HALF + 7), "z" * (HALF + 3), 11),
    ],
)
def test_what_is_cut_is_counted(stream: StreamCapture) -> None:
    output = shaped(RawResult(1, stderr=stream))
    assert output["stderr"] == "a" * HALF + "\n… [21 characters omitted] …\n" + "z" * HALF
    assert output["truncated"] is True
    assert "stderrFile" not in output, "there is none to be named"


def test_what_still_runs_is_listed() -> None:
    server = Living(13, "python3 -m http.server", (8000, 8001))
    output = shaped(RawResult(0, survivors=(Living(12, "sleep 100"), server)))
    assert output["background"] == [
        {"pid": 12, "command": "sleep 100"},
        {"pid": 13, "command": "python3 -m http.server", "ports": [8000, 8001]},
    ]
    assert "backgroundOmitted" not in output
    assert shaped(RawResult(0, survivors=(server,), more_survivors=7))["backgroundOmitted"] == 7


def test_progress_lines_and_colours_are_gone_before_anything_is_cut() -> None:
    progress = "".join(f"\r{number}%" for number in range(1001)) + "\n"
    stdout = StreamCapture(progress * 50 + "\x1b[31mred\x1b[0m\n")
    output = shaped(RawResult(0, stdout=stdout))
    assert output["stdout"] == "1000%\n" * 50 + "red\n"
    assert "truncated" not in output
