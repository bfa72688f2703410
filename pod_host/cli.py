"""The command line: ``pod-host run | dev | status | doctor | --version``.

Exit codes: 0 done, 1 a turn or a check failed, 64 usage, 70 the watchdog, 75 the network gate never closed, 78
configuration, 141 nobody reads what it says.
Everything heavy is imported by the command that needs it: a SIGTERM during those imports must end the process too.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from argparse import Namespace

EXIT_CONFIGURATION = 78


def main(argv: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _leave)
    words = sys.argv[1:] if argv is None else argv
    if [*words] == ["run"]:  # all that it takes: a host starts without the parser's 10 ms
        return _run()
    from pod_host.arguments import parser

    arguments = parser().parse_args(words)
    if arguments.command == "dev":
        return _dev(arguments)
    try:
        code = _status(as_json=arguments.json) if arguments.command == "status" else _doctor(as_json=arguments.json)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has stopped reading: `pod-host doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still has to say
        return 128 + signal.SIGPIPE
    return code


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM before the host has its own handling: nothing is held yet, so leave at once. No exception: an import that
    is under way could swallow one."""
    os._exit(0)


def _run() -> int:
    gc.disable()  # nothing of what is imported is ever garbage; the host looks for some when it has all it needs
    from pod_host.errors import ConfigurationError
    from pod_host.settings import Settings

    try:
        settings = Settings.read(os.environ)
    except ConfigurationError as fault:
        for line in fault.faults:
            print(f"pod-host: {line}", file=sys.stderr)
        return EXIT_CONFIGURATION
    from pod_host.host import main as host_main

    return host_main(settings)


def _status(*, as_json: bool) -> int:
    from pod_host.errors import ConfigurationError
    from pod_host.host.status import NoStatus, read_status
    from pod_host.settings import harness_dir

    try:
        status = read_status(harness_dir(os.environ))
    except ConfigurationError as fault:
        for line in fault.faults:
            print(f"pod-host: {line}", file=sys.stderr)
        return EXIT_CONFIGURATION
    except NoStatus as fault:
        print(f"pod-host: {fault}", file=sys.stderr)
        return 1
    print(status.model_dump_json(by_alias=True, indent=2) if as_json else status.table())
    return 0 if status.connected else 1


def _doctor(*, as_json: bool) -> int:
    from pod_host.host.doctor import main as doctor_main

    return doctor_main(os.environ, json=as_json)


def _dev(arguments: Namespace) -> int:
    try:
        from pod_host.dev.command import run
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("pod_host"):
            raise
        print(
            f"pod-host: dev needs the extra: pip install 'pod-host[dev]' ({missing.name} is missing)", file=sys.stderr
        )
        return 1
    return run(arguments)
