"""Where words come from: one message, a pipe, a terminal; and what a person is asked."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from pod_host.dev import terminal
from pod_host.dev.chat import Chat
from pod_host.dev.north_client import North
from pod_host.dev.rendering import Screen
from pod_host.dev.terminal import Interrupts
from tests.dev.north_rig import FakeNorth, fake_north

MESSAGES = "/v1/sessions/ses_1/messages"
ASKED = {
    "id": "turn_1:0:tool:1",
    "toolName": "shop__price",
    "prompt": "Approve shop / price?",
    "input": {"item": "tea"},
}
ANSWERS = "/v1/sessions/ses_1/interactions/turn_1:0:tool:1"


class Lines(list[str]):
    """What was drawn; a test can wait for a line."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def append(self, line: str) -> None:
        super().append(line)
        self._news.set()

    async def shows(self, start: str) -> None:
        while not any(line.startswith(start) for line in self):
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def chatting(lines: list[str]) -> AsyncIterator[tuple[Chat, FakeNorth]]:
    async with fake_north() as served, North(served.url) as north:
        chat = Chat(north, "ses_1", Screen(lines.append, colours=False, width=lambda: 80))
        following = asyncio.create_task(chat.follow(0))
        try:
            yield chat, served
        finally:
            following.cancel()
            await asyncio.wait({following})


def ends(served: FakeNorth, turn_id: str, kind: str = "turn.completed") -> None:
    served.tell(kind, turnId=turn_id, output="done", error={"code": "x", "message": "y"})


@pytest.mark.parametrize(("kind", "code"), [("turn.completed", 0), ("turn.failed", 1), ("turn.cancelled", 1)])
async def test_one_message_is_sent_and_its_turn_is_the_exit_code(kind: str, code: int) -> None:
    async with chatting([]) as (chat, served):
        served.turn_ids = ["turn_1"]
        task = asyncio.create_task(terminal.one_message(chat, "hi", Interrupts(), person=False))
        assert await served.was_asked("POST", MESSAGES) == {"input": "hi"}
        ends(served, "turn_1", kind)
        assert await task == code


async def test_a_turn_that_is_over_before_the_answer_to_its_message_is_not_waited_for() -> None:
    lines = Lines()
    async with chatting(lines) as (chat, served):
        ends(served, "turn_1")
        await lines.shows("— completed")
        served.turn_ids = ["turn_1"]
        assert await terminal.one_message(chat, "hi", Interrupts(), person=False) == 0


async def test_without_a_person_a_call_is_not_approved_and_the_exit_code_is_1() -> None:
    lines: list[str] = []
    async with chatting(lines) as (chat, served):
        served.turn_ids = ["turn_1"]
        task = asyncio.create_task(terminal.one_message(chat, "buy tea", Interrupts(), person=False))
        await served.was_asked("POST", MESSAGES)
        served.tell("turn.waiting", turnId="turn_1", interactions=[ASKED])
        assert await served.was_asked("POST", ANSWERS) == {"approved": False}
        ends(served, "turn_1")
        assert await task == 1
    assert "Approve shop / price?" in lines
    assert "    item=tea" in lines


async def test_a_pipe_sends_a_line_when_the_turn_before_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n\n  two")))
    lines: list[str] = []
    async with chatting(lines) as (chat, served):
        served.turn_ids = ["turn_1", "turn_2"]
        task = asyncio.create_task(terminal.lines(chat, Interrupts()))
        assert await served.was_asked("POST", MESSAGES) == {"input": "one"}
        ends(served, "turn_1")
        assert await served.was_asked("POST", MESSAGES) == {"input": "two"}
        ends(served, "turn_2")
        assert await task == 0
    assert [line for line in lines if line.startswith("› ")] == ["› one", "› two"]


async def test_a_second_interrupt_ends_what_the_first_could_not() -> None:
    drawn = Lines()
    async with chatting(drawn) as (chat, served):
        interrupts = Interrupts()
        ended = asyncio.Event()
        interrupts.otherwise = ended.set
        served.turn_ids = ["turn_1"]
        task = asyncio.create_task(terminal.one_message(chat, "work", interrupts, person=False))
        await served.was_asked("POST", MESSAGES)
        served.tell("turn.queued", turnId="turn_1")
        served.tell("message.assistant", turnId="turn_1", text="I work.")
        await drawn.shows("I work.")
        interrupts.press()
        await served.was_asked("POST", "/v1/sessions/ses_1/cancel")
        assert not ended.is_set()
        interrupts.press()
        assert ended.is_set()
        task.cancel()
        await asyncio.wait({task})


async def test_a_pipe_that_says_nothing_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    async with chatting([]) as (chat, _):
        assert await terminal.lines(chat, Interrupts()) == 0


@asynccontextmanager
async def prompting(
    served_lines: list[str], history: Path | None = None
) -> AsyncIterator[tuple[PipeInput, FakeNorth, asyncio.Task[int]]]:
    async with chatting(served_lines) as (chat, served):
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            task = asyncio.create_task(terminal.prompt(chat, Interrupts(), history))
            try:
                yield keys, served, task
            finally:
                task.cancel()
                await asyncio.wait({task})


async def test_what_is_typed_is_sent_and_the_end_of_input_ends(tmp_path: Path) -> None:
    async with prompting([], tmp_path / "history") as (keys, served, task):
        keys.send_text("hello\r")
        assert await served.was_asked("POST", MESSAGES) == {"input": "hello"}
        keys.send_text("\r\x04")  # an empty line is not sent; Ctrl-D
        assert await task == 0
    assert "hello" in (tmp_path / "history").read_text()
    assert not [one for one in served.asked if one[1] == MESSAGES]


async def test_bytes_that_are_no_text_are_sent_and_kept_as_text(tmp_path: Path) -> None:
    async with prompting([], tmp_path / "history") as (keys, served, _):
        keys.send_bytes(b"caf\xe9\r")
        sent = await served.was_asked("POST", MESSAGES)
    assert sent["input"].encode().startswith(b"caf")
    assert "caf" in (tmp_path / "history").read_text(encoding="utf-8")


async def test_interrupting_cancels_a_turn_and_at_the_prompt_it_ends() -> None:
    lines = Lines()
    async with prompting(lines) as (keys, served, task):
        served.turn_ids = ["turn_1"]
        keys.send_text("work\r")
        await served.was_asked("POST", MESSAGES)
        served.tell("turn.queued", turnId="turn_1")
        served.tell("message.assistant", turnId="turn_1", text="I work.")
        await lines.shows("I work.")
        keys.send_text("\x03")
        assert await served.was_asked("POST", "/v1/sessions/ses_1/cancel") == {"reason": "cancel"}
        assert not task.done()


async def test_interrupting_at_the_prompt_ends() -> None:
    async with prompting([]) as (keys, _, task):
        keys.send_text("\x03")
        assert await task == 0


@pytest.mark.parametrize(("typed", "approved"), [("y\r", True), ("\r", False), ("nope\r", False)])
async def test_a_person_is_asked(typed: str, approved: bool) -> None:
    lines = Lines()
    async with prompting(lines) as (keys, served, _):
        served.tell("turn.waiting", turnId="turn_1", interactions=[ASKED])
        await lines.shows("    item=tea")
        keys.send_text(typed)
        assert await served.was_asked("POST", ANSWERS) == {"approved": approved}


@pytest.mark.parametrize(("typed", "approved"), [("yes\r", True), ("\x03", False), ("\x04", False)])
async def test_a_person_is_asked_for_one_message_too(typed: str, approved: bool) -> None:
    async with chatting([]) as (chat, served):
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            served.turn_ids = ["turn_1"]
            task = asyncio.create_task(terminal.one_message(chat, "buy tea", Interrupts(), person=True))
            await served.was_asked("POST", MESSAGES)
            served.tell("turn.waiting", turnId="turn_1", interactions=[ASKED])
            keys.send_text(typed)
            assert await served.was_asked("POST", ANSWERS) == {"approved": approved}
            ends(served, "turn_1")
            assert await task == 0


async def test_a_message_while_a_turn_runs_is_sent_at_once() -> None:
    async with prompting([]) as (keys, served, _):
        served.turn_ids = ["turn_1", None]
        keys.send_text("one\r")
        await served.was_asked("POST", MESSAGES)
        keys.send_text("two\r")
        assert await served.was_asked("POST", MESSAGES) == {"input": "two"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_and_for_those_who_want_them(
    stream: io.StringIO, environ: dict[str, str], coloured: bool
) -> None:
    terminal.screen_on(stream, environ).say("hello")
    assert ("\x1b[" in stream.getvalue()) is coloured
