"""``python -m pod_host.dev.say MESSAGE``: talk to an embedded Runtime that runs already, a cluster's for example. Waits for
its host to be connected, sends the message, shows its turn. Without a message it is a chat.

Exit codes: 0 the turn completed, 1 it did not, or the Runtime or its host was not there in time.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from pod_host.dev import terminal
from pod_host.dev.chat import Chat
from pod_host.dev.north_client import North, NorthError
from pod_host.dev.terminal import Interrupts

NORTH = "http://127.0.0.1:4180"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pod_host.dev.say", description=__doc__)
    parser.add_argument("message", nargs="?", help="without it: a chat")
    parser.add_argument("--north", default=NORTH, metavar="URL", help=f"the Runtime's own API (default: {NORTH})")
    parser.add_argument("--session", metavar="ID", help="go on with this session")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="for the host to be connected")
    options = parser.parse_args()
    try:
        return asyncio.run(_talk(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except TimeoutError:
        print(f"no host connected within {options.wait:g} s", file=sys.stderr)
    except NorthError as fault:
        print(fault, file=sys.stderr)
    return 1


async def _talk(options: argparse.Namespace) -> int:
    async with North(options.north) as north:
        after = await _connected(north, options.wait)
        session_id = options.session or await north.open_session()
        chat = Chat(north, session_id, terminal.screen_on())
        interrupts = Interrupts()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupts.press)
        following = asyncio.create_task(chat.follow(after))
        try:
            await chat.resume()
            if options.message is not None:
                talking = terminal.one_message(chat, options.message, interrupts, person=False)
            elif sys.stdin.isatty():
                talking = terminal.prompt(chat, interrupts, None)
            else:
                talking = terminal.lines(chat, interrupts)
            talk = asyncio.create_task(talking)
            interrupts.otherwise = lambda: _end(talk)
            await asyncio.wait({following, talk}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                talk.cancel()
                following.result()
                raise NorthError(0, "unavailable", "the embedded Runtime ended")
            return talk.result()
        finally:
            following.cancel()


def _end(talk: asyncio.Task[int]) -> None:
    talk.cancel()


async def _connected(north: North, seconds: float) -> int:
    """Waits until the host is connected. The sequence number of the last event so far."""
    last = 0
    async for event in north.events():
        last = event["seq"]
    if (await north.status())["host"]["connected"]:
        return last
    async with asyncio.timeout(seconds):
        async for event in north.events(last, follow=True):
            if event["type"] == "host.connected":
                return int(event["seq"])
    raise NorthError(0, "unavailable", "the embedded Runtime ended")


if __name__ == "__main__":
    sys.exit(main())
