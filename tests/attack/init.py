"""The init of a PID namespace that a host runs in: it starts the host, passes SIGTERM on, reaps, and ends as the host did.

The host must not be the init itself: the kernel keeps signals of its own namespace from an init, and so would hide what
confinement does. Run as ``init.py {"uid", "tasks", "cgroup"} program…``; ``tasks``: the hard limit on processes and threads
of a uid that is not root, for whatever gets away; ``cgroup``: where all of it goes, or null.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from types import FrameType


def enter(cgroup: str) -> None:
    """As container runtimes do: where it was divided already, beside whom it was divided for."""
    for place in (cgroup, f"{cgroup}/host"):
        try:
            with open(f"{place}/cgroup.procs", "w") as procs:
                procs.write("0")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["cgroup"]:  # we, not who made the namespace: in here only our own have numbers
        enter(settings["cgroup"])
    host = os.fork()
    if host == 0:
        os.setsid()  # a group of this namespace: one of outside has no number here
        resource.setrlimit(resource.RLIMIT_NPROC, (settings["tasks"], settings["tasks"]))
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        uid = settings["uid"]
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.execv(sys.argv[2], sys.argv[2:])

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(host, number)

    signal.signal(signal.SIGTERM, pass_on)
    while True:
        pid, status = os.wait()
        if pid == host:
            print(
                json.dumps({"event": "ended", "status": status, "core": os.WCOREDUMP(status)}),
                file=sys.stderr,
                flush=True,
            )
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
