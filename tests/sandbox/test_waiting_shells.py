"""Shells wait for a script of any session. What one session's command does to them, the next command of another must not pay
for: it runs, once, and as if nothing had been."""

from __future__ import annotations

import pytest

from tests.sandbox.conftest import Box

AT_OTHER_SHELLS = """
import os, signal, sys
for name in os.listdir("/proc"):
    if name.isdecimal() and int(name) != os.getppid():
        try:
            with open(f"/proc/{name}/comm") as file:
                if file.read() == "bash\\n":
                    os.kill(int(name), int(sys.argv[1]))
        except OSError:
            pass  # it has gone
"""


@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM", "INT", "HUP", "USR1"])
async def test_a_signal_to_waiting_shells_costs_no_later_command(box: Box, signal: str) -> None:
    await box.bash(f"cat > signal.py <<'END'\n{AT_OTHER_SHELLS}\nEND")
    for number in range(4):
        for warm in range(3):
            await box.bash("true", f"warm{warm}")
        await box.bash(f"python3 signal.py $(kill -l {signal})", "hostile")
        for after in range(4):
            output = await box.bash(
                f"echo ran >> ran{number}-{after}; cat ran{number}-{after}", f"s{after}", timeout=30
            )
            assert (output["exitCode"], output["stdout"]) == (0, "ran\n"), signal
