"""The words of the command line: what each command takes, and what is told of it."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from pod_host import __version__

EXIT_USAGE = 64


class _Parser(argparse.ArgumentParser):
    """argparse, but a wrong word ends in exit 64 (EX_USAGE) rather than 2."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(prog="pod-host", description="The harness host of a Nylorun pod Agent.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"pod-host {__version__}")
    commands = top.add_subparsers(
        dest="command", metavar="run | dev | status | doctor", required=True, parser_class=_Parser
    )
    commands.add_parser(
        "run",
        help="the container's job: join the Runtime, serve the sandbox, take turns",
        description="Runs the host. It takes no arguments: the environment is its launch contract (see the README).",
        allow_abbrev=False,
    )
    dev = commands.add_parser(
        "dev",
        help="a chat with the host against an embedded Runtime on loopback",
        description="Starts an embedded Runtime on loopback and the real host against it, and opens a chat.",
        allow_abbrev=False,
    )
    dev.add_argument(
        "--message",
        type=_message,
        metavar="TEXT",
        help="send one message, show its turn, exit 0 when it completed, else 1",
    )
    dev.add_argument(
        "--agent",
        type=_path,
        metavar="FILE",
        help="an agent file (YAML or JSON): instructions, tools, skills, setup, …",
    )
    dev.add_argument("--keep", type=_path, metavar="DIR", help="use DIR as the workspace and keep it")
    for name in ("harness", "gates", "egress", "north"):
        dev.add_argument(
            f"--{name}-port", type=_port, metavar="PORT", help=f"of the Runtime's {name} listener; default: any"
        )
    status = commands.add_parser(
        "status",
        help="how the host beside it is: joined, connected, runs, last renewal, worker",
        description="Asks the host of this pod (POD_HOST_HARNESS_DIR). Exit code 0 when it is connected, else 1.",
        allow_abbrev=False,
    )
    status.add_argument("--json", action="store_true", help="for programs")
    doctor = commands.add_parser(
        "doctor",
        help="what works here and what would not: environment, network, disk, kernel, confinement, clients",
        description="Looks at everything that the host and its commands need. Exit code 1 when something would fail.",
        allow_abbrev=False,
    )
    doctor.add_argument("--json", action="store_true", help="for programs")
    return top


def _message(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; write something")
    return text


def _path(text: str) -> str:
    if not text:  # of a variable that is not set, say
        raise argparse.ArgumentTypeError("it is empty; write a path, or leave the option out")
    return text


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 1 to 65535")
    return int(text)
