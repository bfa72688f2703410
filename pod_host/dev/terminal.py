"""Where a person's words come from: a terminal with a prompt, a pipe with a message on each line, or one message.

Each of the three returns an exit code: 0 when the last turn completed (or there was none), else 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.patch_stdout import patch_stdout

from pod_host.dev.chat import Chat, well_formed
from pod_host.dev.rendering import Screen

PROMPT: Final = "› "
BUSY: Final = "… "
QUESTION: Final = "[y/N] "
YES: Final = frozenset({"y", "yes"})
WIDTH: Final = 100  # without a terminal


def screen_on(stream: TextIO | None = None, environ: dict[str, str] | None = None) -> Screen:
    """A screen on stdout: colours on a terminal only, and not when NO_COLOR is set (to anything but nothing)."""
    environ = dict(os.environ) if environ is None else environ
    if stream is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what it cannot show is no reason to end
    terminal = (stream or sys.stdout).isatty()

    def write(line: str) -> None:
        # Looked up each time: while a prompt is open, stdout is the one that draws above it.
        print(line, file=stream or sys.stdout, flush=True)

    def width() -> int:
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns) if terminal else WIDTH

    colours = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Screen(write, colours=colours, width=width)


class Interrupts:
    """What Ctrl-C does at the moment. ``otherwise``: when nobody has taken it; it ends everything."""

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self.otherwise: Callable[[], None] = lambda: None

    def press(self) -> None:
        (self._action or self.otherwise)()

    @contextlib.contextmanager
    def taken_by(self, action: Callable[[], None]) -> Iterator[None]:
        self._action = action
        try:
            yield
        finally:
            self._action = None

    @contextlib.contextmanager
    def cancelling(self, chat: Chat) -> Iterator[None]:
        """The first press cancels the turns under way; without one, or when pressed again, it ends everything."""
        pressed: set[frozenset[str]] = set()

        def press() -> None:
            if chat.active and chat.active not in pressed:
                pressed.add(chat.active)
                chat.cancel()
            else:
                self.otherwise()

        with self.taken_by(press):
            yield


async def one_message(chat: Chat, text: str, interrupts: Interrupts, *, person: bool) -> int:
    """Send ``text`` and show its turn. ``person``: somebody is there to approve calls."""
    with interrupts.cancelling(chat):
        await _over(chat, person=person)
        await chat.send(text)
        await _over(chat, person=person)
        return _code(chat)


async def lines(chat: Chat, interrupts: Interrupts) -> int:
    """Each line of stdin is a message, sent when the turn before it is over."""
    with interrupts.cancelling(chat):
        await _over(chat, person=False)
        stdin = _Lines()
        while (line := await stdin.next()) is not None:
            if line.strip():
                chat.echo(line.strip())
                await chat.send(line.strip())
                await _over(chat, person=False)
        return _code(chat)


async def prompt(chat: Chat, interrupts: Interrupts, history: Path | None) -> int:
    """A prompt that stays open while turns run: what is typed meanwhile waits for the next turn."""
    keys = KeyBindings()
    session: PromptSession[str] = PromptSession(
        message=lambda: QUESTION if chat.asked else BUSY if chat.running else PROMPT,
        history=_History(str(history)) if history else InMemoryHistory(),
        key_bindings=keys,
    )

    def press() -> None:
        if chat.running:
            chat.cancel()
        elif session.app.is_running:
            session.app.exit(exception=EOFError())

    keys.add("c-c")(lambda event: press())
    chat.on_change = session.app.invalidate
    # While lines are drawn above the prompt the terminal is not in raw mode, and Ctrl-C is a signal: ours.
    with interrupts.taken_by(press), patch_stdout(raw=True):
        while True:
            try:
                text = (await session.prompt_async(handle_sigint=False)).strip()
            except EOFError:
                return 0
            if chat.asked:
                await chat.answer(text.lower() in YES)
            elif text:
                await chat.send(text)


async def _over(chat: Chat, *, person: bool) -> None:
    """Returns when no turn is under way. What a turn asks meanwhile is answered: without a person, with no."""
    await chat.settled()
    while chat.asked:
        if person:
            approved = await _ask()
        else:
            approved = False
            chat.refuse_for_want_of_a_person()
        await chat.answer(approved)
        await chat.settled()


async def _ask() -> bool:
    """An answer that is not given is no."""
    with patch_stdout(raw=True):
        try:
            return (await PromptSession[str](QUESTION).prompt_async(handle_sigint=False)).strip().lower() in YES
        except (EOFError, KeyboardInterrupt):
            return False


def _code(chat: Chat) -> int:
    return 0 if chat.last in (None, "completed") and not chat.refused else 1


class _History(FileHistory):
    def store_string(self, string: str) -> None:
        super().store_string(well_formed(string))


class _Lines:
    """Lines of stdin, read in a thread of its own: it may stay blocked in a read for ever, and must hold up nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def next(self) -> str | None:
        """None at the end."""
        line = await self._queue.get()
        return line.decode(errors="replace") if line else None

    def _read(self) -> None:
        for line in iter(sys.stdin.buffer.readline, b""):
            if not self._tell(line):
                return
        self._tell(b"")

    def _tell(self, line: bytes) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, line)
        except RuntimeError:  # the loop is gone: nobody listens any more
            return False
        return True
