"""Commands whose processes try to outlive them."""

from __future__ import annotations

from tests.sandbox.hostile import TREES as COMMON

_FORGER = """
import os, resource, time
LOCKS = 10
while True:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                rss = resource.prlimit(int(name), resource.RLIMIT_RSS)[1]
                locks = resource.prlimit(int(name), LOCKS)[1]
                resource.setrlimit(resource.RLIMIT_RSS, (min(rss, 2**62), rss))
                resource.setrlimit(LOCKS, (min(locks, 2**62), locks))
            except (OSError, ValueError):
                pass
    if os.fork():
        os._exit(0)
    os.setsid()
"""
_KILLED_FORKER = """
import os, signal, time
def fork(*_):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, fork)
        while True: time.sleep(1)
signal.signal(signal.SIGTERM, fork)
while True: time.sleep(1)
"""
_EXIT_SIGNAL = """
import ctypes, os, time
libc = ctypes.CDLL(None)
clone = 56 if os.uname().machine == "x86_64" else 220
for how in (9, 19, 0x8000 | 9):  # SIGKILL, SIGSTOP to the parent when the child ends; CLONE_PARENT: to ours
    if os.fork() == 0:
        if libc.syscall(clone, how, 0, 0, 0, 0) == 0:
            time.sleep(0.1)
        os._exit(0)
time.sleep(99)
"""

TREES = {
    **COMMON,
    "double fork, no environment": "env -i setsid sh -c '(sleep 999 &) ; (sleep 999 &)' & sleep 99",
    "forged marks": f"python3 -c '{_FORGER}' & sleep 99",
    "forks when killed": f"for i in 1 2 3; do python3 -c '{_KILLED_FORKER}' & done; sleep 99",
    "stopped whole": "sh -c 'kill -STOP $$' & setsid -f sh -c 'kill -STOP $$'; kill -STOP $$",
    "exit signals": f"python3 -c '{_EXIT_SIGNAL}'",
    "closed descriptors": "exec 0<&- 1>&- 2>&-; setsid -f sleep 999; sleep 99",
    "ignores everything": "trap '' HUP INT QUIT TERM CONT USR1 USR2; setsid sh -c 'sleep 999 & sleep 999' & wait",
}
