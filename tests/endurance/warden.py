"""The init of the pod: it starts a host whenever it is told to, reaps whatever ends, and never ends by itself.

Lines on stdin: ``{"argv", "env", "uid", "log"}`` starts a host. Lines on stdout: ``{"started": pid}``, and
``{"ended": pid, "status": wait status}`` for a host. When stdin ends, everything does. Outside of a PID namespace it is the
subreaper of what it started, and knows them by that.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import traceback
from typing import Any

from pod_host.sandbox import kernel

_HOST_TASKS = 2000  # processes and threads of a host that is not root, whatever gets away


def main() -> None:
    kernel.become_subreaper()
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    hosts: set[int] = set()
    held = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(waking, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 65536)
                if key.fd == waking:
                    _reap(hosts)
                elif not data:
                    return
                else:
                    *lines, held = (held + data).split(b"\n")
                    for line in lines:
                        hosts.add(_start(json.loads(line)))


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        _say(started=pid)
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 1024)
        if order["uid"] and os.geteuid() == 0:
            resource.setrlimit(resource.RLIMIT_NPROC, (_HOST_TASKS, _HOST_TASKS))
            os.setgroups([])
            os.setresgid(order["uid"], order["uid"], order["uid"])
            os.setresuid(order["uid"], order["uid"], order["uid"])
        os.execve(order["argv"][0], order["argv"], order["env"])
    except BaseException:  # noqa: BLE001 - whatever it was: this is a copy of the init, which must not go on
        traceback.print_exc()
    os._exit(127)


def _reap(hosts: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in hosts:
            hosts.discard(pid)
            _say(ended=pid, status=status)


def _say(**told: int) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    main()
