"""What a person sees of the record and of the host's log."""

from __future__ import annotations

import pytest

from pod_host.contract.base import Json, JsonObject
from pod_host.dev.rendering import OUTPUT_LINES, Screen, clean


class Drawn:
    """A screen that keeps its lines."""

    def __init__(self, *, colours: bool = False, width: int = 80) -> None:
        self.lines: list[str] = []
        self.screen = Screen(self.lines.append, colours=colours, width=lambda: width)

    def show(self, *events: JsonObject) -> list[str]:
        for event in events:
            self.screen.event(event)
        return self.lines


def event(kind: str, second: int = 0, **members: Json) -> JsonObject:
    return {"seq": second + 1, "at": f"2026-01-02T03:04:{second:02}.000Z", "type": kind, "turnId": "turn_1", **members}


def started(name: str, given: Json, effect: str = "e1") -> JsonObject:
    return event("tool.started", effectId=effect, callId="c", toolName=name, input=given, target={"kind": "sandbox"})


def ran(stdout: str, exit_code: int = 0, effect: str = "e1", stderr: str = "") -> JsonObject:
    output = {"exitCode": exit_code, "stdout": stdout, "stderr": stderr}
    return event("tool.completed", effectId=effect, callId="c", toolName="bash", output=output, durationMs=41)


def test_a_turn_shows_text_calls_output_time_and_its_end() -> None:
    lines = Drawn().show(
        event("turn.started", input="hi", segment=0),
        event("message.assistant", effectId="m1", text="I look.", toolCalls=[{}], usage={"totalTokens": 30}),
        started("bash", {"command": "ls -la"}),
        ran("a.txt\nb.txt\n", 2, stderr="oops\n"),
        event("message.assistant", effectId="m2", text="Two files.", toolCalls=[], usage={"totalTokens": 12}),
        event("turn.completed", 2, output="Two files."),
    )
    assert lines == [
        "I look.",
        "  ▸ bash  $ ls -la",
        "    a.txt",
        "    b.txt",
        "    oops",
        "    exit 2 · 41 ms",
        "Two files.",
        "— completed · 2.0 s · 2 model calls, 1 tool call, 42 tokens",
    ]


def test_calls_that_end_among_others_are_named_again() -> None:
    lines = Drawn().show(
        started("bash", {"command": "one"}, "e1"), started("bash", {"command": "two"}, "e2"), ran("1", effect="e1")
    )
    assert lines[2:] == ["  ◂ bash  $ one", "    1", "    exit 0 · 41 ms"]


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("bash", {"command": "echo a\necho b", "timeout": 9}, ["  ▸ bash  $ echo a  (timeout=9)", "      echo b"]),
        ("write", {"path": "a.txt", "content": "one\ntwo\n"}, ["  ▸ write  a.txt", "      one", "      two"]),
        (
            "edit",
            {"path": "a.txt", "old_string": "x", "new_string": "y", "replace_all": True},
            ["  ▸ edit  a.txt  replace_all=true", "      - x", "      + y"],
        ),
        ("shop__price", {"item": {"name": "tea"}}, ['  ▸ shop__price  item={"name": "tea"}']),
        ("now", {}, ["  ▸ now"]),
    ],
)
def test_arguments_are_shown_as_their_tool_means_them(name: str, given: JsonObject, shown: list[str]) -> None:
    assert Drawn().show(started(name, given)) == shown


def test_a_long_output_loses_its_middle_and_says_so() -> None:
    lines = Drawn().show(started("bash", {"command": "seq 100"}), ran("\n".join(map(str, range(100)))))
    assert len(lines) == OUTPUT_LINES + 3
    assert f"    … {100 - OUTPUT_LINES} more lines …" in lines
    assert lines[1] == "    0"
    assert lines[-2] == "    99"


def test_a_long_line_is_cut_at_the_width() -> None:
    lines = Drawn(width=40).show(started("bash", {"command": "x" * 99}), ran("y" * 99))
    assert all(len(line) <= 40 for line in lines)
    assert lines[0].endswith("…")


def test_a_failed_call_shows_its_code_and_words() -> None:
    error = {"code": "sandbox.not_found", "message": "No file at /a"}
    lines = Drawn().show(event("tool.completed", effectId="e9", toolName="read", error=error, durationMs=1500))
    assert lines == ["  ◂ read", "    No file at /a", "    failed: sandbox.not_found · 1.5 s"]


def test_an_output_that_the_model_did_not_say_is_shown() -> None:
    lines = Drawn().show(event("turn.completed", output={"answer": 42}))
    assert '  "answer": 42' in lines


def test_ends_other_than_completed_say_why() -> None:
    error = {"code": "model.auth", "message": "no key"}
    assert Drawn().show(event("turn.failed", error=error))[0].startswith("— failed: model.auth: no key · ")
    assert Drawn().show(event("turn.cancelled", reason="cancel"))[0].startswith("— cancelled · ")


def test_nothing_that_is_not_trusted_reaches_the_terminal_as_a_control_character() -> None:
    evil = "\x1b[2J\x1b]0;title\x07\x1bPq\x1b\\\x9b31mred\x08\x7f\u202egnp\r\nend\rover\x1b"
    drawn = Drawn(colours=False)
    drawn.show(
        event("message.assistant", effectId="m", text=evil),
        started(evil, {evil: evil, "path": evil, "content": evil}),
        started("bash", {"command": evil}, "e2"),
        ran(evil, effect="e2", stderr=evil),
        event("tool.completed", effectId="e3", toolName=evil, error={"code": evil, "message": evil}),
        event("turn.completed", output={"x": evil}),
        event("turn.failed", error={"code": evil, "message": evil}),
        event("host.refused", what=evil, reason=evil),
        event("warning", text=evil),
    )
    drawn.screen.host_event({"level": "error", "event": evil, "reason": evil})
    drawn.screen.host_event({"event": "setup.step", "step": 1, "of": 1, "what": evil})
    drawn.screen.host_event({"event": "setup.failed", "output": evil, "reason": evil})
    drawn.screen.question({"toolName": evil, "prompt": evil, "input": {"x": evil}})
    for line in drawn.lines:
        assert line.isprintable(), repr(line)


@pytest.mark.parametrize(
    ("dirty", "tidy"),
    [
        ("a\x1b[1;31mb\x1b[0mc", "abc"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\tb", "a\tb"),
    ],
)
def test_clean_keeps_the_words(dirty: str, tidy: str) -> None:
    assert clean(dirty) == tidy


def test_colours_come_only_when_asked_for() -> None:
    assert "\x1b[" in "".join(Drawn(colours=True).show(started("bash", {"command": "ls"})))
    assert "\x1b" not in "".join(Drawn().show(started("bash", {"command": "ls"})))


def test_setup_shows_its_steps_and_troubles_of_the_host_are_told() -> None:
    drawn = Drawn()
    for told in (
        {"level": "info", "event": "setup.started", "of": 2},
        {"level": "info", "event": "setup.step", "step": 1, "of": 2, "what": "make deps\nmake more"},
        {"level": "info", "event": "setup.output", "step": 1, "output": "ok\n", "durationMs": 1200, "exitCode": 0},
        {
            "level": "error",
            "event": "setup.failed",
            "step": 2,
            "reason": "exit code 3",
            "output": "no",
            "log": "~/setup.log",
        },
        {"level": "info", "event": "renew.done", "epoch": 1},
        {"level": "warning", "event": "gate.off", "reason": "off"},
        {"level": "warning", "event": "join.refused", "status": 401, "reason": "no"},
    ):
        drawn.screen.host_event(told)
    assert drawn.lines == [
        "setup: 2 steps",
        "setup 1/2  make deps",
        "    ok",
        "    1.2 s",
        "    no",
        "setup failed: exit code 3; its whole output: ~/setup.log",
        "host: join.refused status=401 reason=no",
    ]
