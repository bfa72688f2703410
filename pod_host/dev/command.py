"""``pod-host dev``: the embedded Runtime in this process, the real host in its own, and a terminal before them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeVar

from pod_host.contract.base import JsonObject
from pod_host.contract.open_points import read_setup
from pod_host.dev import directories, terminal
from pod_host.dev.agent import DEFAULT_AGENT, Agent, load_agent
from pod_host.dev.chat import Chat
from pod_host.dev.credentials import unset_variables
from pod_host.dev.directories import Directories
from pod_host.dev.host_process import HostProcess, launch_environment
from pod_host.dev.models import Model, choose_model
from pod_host.dev.north_client import North
from pod_host.dev.rendering import Screen, clean
from pod_host.dev.runtime import Runtime, RuntimeConfig
from pod_host.dev.terminal import Interrupts
from pod_host.errors import ConfigurationError, PodHostError

CONNECT_SECONDS: Final = 60.0  # a host that is not connected by then never will be
Result = TypeVar("Result")
HISTORY: Final = "history"  # what was typed, in the state of a kept workspace


class _Ended(PodHostError):
    """The host is gone, or never came. ``lines`` say how, for people."""

    code = "host_ended"

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[0])
        self.lines = lines


def run(arguments: argparse.Namespace) -> int:
    """``arguments`` has message, agent, keep and the four ports; each may be None. The exit code is cli.py's."""
    # What the record warns of comes as an event, and is drawn like all others.
    logging.getLogger("pod_host.dev.record").propagate = False
    for library in ("mcp", "client"):  # what an MCP server does wrong is its call's outcome
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        agent = load_agent(Path(arguments.agent)) if arguments.agent else DEFAULT_AGENT
        place = directories.kept(Path(arguments.keep), os.environ) if arguments.keep else directories.temporary()
        with place as at:
            return asyncio.run(_dev(arguments, agent, choose_model(os.environ), at))
    except ConfigurationError as fault:
        lines = fault.faults
    except _Ended as fault:
        lines = fault.lines
    except PodHostError as fault:
        lines = (str(fault),)
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print(f"pod-host: {clean(lines[0])}", *map(clean, lines[1:]), sep="\n", file=sys.stderr)
    return 1


async def _dev(arguments: argparse.Namespace, agent: Agent, model: Model, at: Directories) -> int:
    """Ends with the chat, with the host, or with the first signal; those after it change nothing."""
    interrupts = Interrupts()
    talking = asyncio.create_task(_talk(arguments, agent, model, at, interrupts))
    loop = asyncio.get_running_loop()
    told: list[int] = []

    def end(number: int) -> None:
        if not told:
            told.append(number)
            talking.cancel()

    interrupts.otherwise = lambda: end(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, interrupts.press)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await talking
    except asyncio.CancelledError:
        if not told:
            raise
        return 128 + told[0]


async def _talk(
    arguments: argparse.Namespace, agent: Agent, model: Model, at: Directories, interrupts: Interrupts
) -> int:
    screen = terminal.screen_on()
    async with AsyncExitStack() as life:
        runtime = Runtime(
            RuntimeConfig(
                state_dir=at.runtime,
                agent=agent,
                model=model,
                credentials=os.environ,
                harness_port=arguments.harness_port or 0,
                gates_port=arguments.gates_port or 0,
                egress_port=arguments.egress_port or 0,
                north_port=arguments.north_port or 0,
            )
        )
        await runtime.start()
        life.push_async_callback(runtime.stop)
        north = await life.enter_async_context(North(runtime.north_url))
        session_id, after, earlier = await _session(north, kept=bool(arguments.keep))
        chat = Chat(north, session_id, screen)
        screen.say(_banner(agent, model, at, runtime))
        person = sys.stdin.isatty() and sys.stdout.isatty()
        if person and arguments.message is None:
            screen.say("Ctrl-C cancels the turn under way; Ctrl-D, or Ctrl-C without one, ends the chat")
        if earlier:
            screen.say(f"going on with the session of {earlier}")
        for line in unset_variables(agent, os.environ):
            screen.say(f"warning: {line}", "yellow")
        stays = arguments.keep is not None or arguments.message is None
        home = at.harness / "home" if stays else None
        setup = _SetupWatch(screen, home, expected=at.fresh and bool(read_setup(agent.setup)))
        environment = launch_environment(runtime, agent, at, os.environ)
        host = await HostProcess.start(environment, setup.take)
        life.push_async_callback(host.stop)
        following = await life.enter_async_context(_task(chat.follow(after)))
        dying = await life.enter_async_context(_task(_death(host)))
        talking = await life.enter_async_context(
            _task(_converse(arguments, chat, setup, at, interrupts, person=person))
        )
        done, _ = await asyncio.wait({following, dying, talking}, return_when=asyncio.FIRST_COMPLETED)
        if talking in done:
            return talking.result()
        for ended in done:
            ended.result()  # raises: neither has an end of its own
        raise _Ended("the embedded Runtime ended its stream of events")


async def _session(north: North, *, kept: bool) -> tuple[str, int, str | None]:
    """The session to talk in, the last event before it, and when it was opened if it is an earlier one."""
    sessions = await north.sessions() if kept else []
    if not sessions:
        return await north.open_session(), 0, None
    newest = sessions[-1]
    after = 0
    async for event in north.events():
        after = event["seq"]
    return newest["sessionId"], after, str(newest.get("createdAt") or newest["sessionId"])


async def _converse(
    arguments: argparse.Namespace,
    chat: Chat,
    setup: _SetupWatch,
    at: Directories,
    interrupts: Interrupts,
    *,
    person: bool,
) -> int:
    """From the host's connection to the last word."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await chat.connected()
    except TimeoutError:
        raise _Ended(f"the host did not connect within {CONNECT_SECONDS:.0f} s", *setup.last) from None
    await setup.over.wait()
    await chat.resume()  # what an earlier run left under way goes on
    if arguments.message is not None:
        return await terminal.one_message(chat, arguments.message, interrupts, person=person)
    if person:
        return await terminal.prompt(chat, interrupts, at.runtime / HISTORY if arguments.keep else None)
    return await terminal.lines(chat, interrupts)


async def _death(host: HostProcess) -> None:
    code = await host.ended()
    raise _Ended(*host.epitaph(code))


class _SetupWatch:
    """Shows the host's log and knows when setup is over; ``expected``: it will run, the volume being new. ``home``: of the
    commands, None when nobody can look into it before it goes."""

    def __init__(self, screen: Screen, home: Path | None, *, expected: bool) -> None:
        self._screen = screen
        self._home = home
        self.over = asyncio.Event()
        self.last: list[str] = []  # troubles, should the host never connect
        if not expected:
            self.over.set()

    def take(self, event: JsonObject) -> None:
        log = event.get("log")
        if isinstance(log, str):  # ~ is a person's own home, too
            event = {**event, "log": log.replace("~", str(self._home), 1) if self._home else None}
        self._screen.host_event(event)
        if event.get("event") in ("setup.done", "setup.failed"):
            self.over.set()
        if event.get("level") in ("warning", "error"):
            self.last = [*self.last[-4:], f"{event.get('event')}: {event.get('reason', '')}"]


@contextlib.asynccontextmanager
async def _task(work: Coroutine[None, None, Result]) -> AsyncIterator[asyncio.Task[Result]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def _banner(agent: Agent, model: Model, at: Directories, runtime: Runtime) -> str:
    described = model.descriptor
    return (
        f"agent {agent.name} · model {described.id} ({described.provider}) · workspace {at.workspace}\n"
        f"the Runtime's own API: {runtime.north_url}/v1/status"
    )
