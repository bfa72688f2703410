"""The join file and the host's directory: out of reach but for the commands' home and the trust bundle, which is read only.

At every Landlock ABI, for a host started as root and as the commands' own user, who then owns all of these files.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest

from tests.attack.battery import NEWEST
from tests.attack.rig import as_each, attacked, call
from tests.sandbox.conftest import UID

SECRET = "join-token-1"
at_each_abi = pytest.mark.parametrize("abi", range(2, NEWEST + 1))

# {file}: one that is hidden; {directory}: its own; each must fail, and print nothing of it
ON_A_HIDDEN_FILE = {
    "read": "cat {file}",
    "read by a symbolic link": "ln -sfn {file} soft && cat soft",
    "read by a hard link": "ln {file} hard",
    "read by its directory": "cd {directory} && cat $(basename {file})",
    "read by a reopened descriptor": (
        'python3 -c \'import os; f = os.open("{file}", os.O_PATH); print(open(f"/proc/self/fd/{{f}}").read())\''
    ),
    "read by the worker's root": "cat /proc/$PPID/root{file}",
    "read by one's own root": "cat /proc/self/root{file}",
    "read by a user namespace": "unshare -r cat {file}",
    "read by a bind mount": "mkdir m; unshare -rm sh -c 'mount --bind {directory} m && cat m/$(basename {file})'",
    "copy": "cp {file} copied",
    "rename": "mv {file} moved",
    "rename its directory": "mv {directory} moved",
    "exchange": (
        "touch mine; python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).renameat2("
        '-100, b"{file}", -100, b"mine", 2) != 0)\''
    ),
    "write": "echo x > {file}",
    "append": "echo x >> {file}",
    "truncate": "python3 -c 'import os; os.truncate(\"{file}\", 0)'",
    "truncate when opened": "python3 -c 'import os; os.open(\"{file}\", os.O_TRUNC)'",
    "remove": "rm -f {file}",
    "make beside it": "touch {directory}/new",
    "make a directory beside it": "mkdir {directory}/new",
    "make a socket beside it": (
        'python3 -c \'import socket; socket.socket(socket.AF_UNIX).bind("{directory}/new")\''
    ),
    "make a link beside it": "ln -s /etc/passwd {directory}/new",
    "make a pipe beside it": "mkfifo {directory}/new",
    "a lease on it": "python3 -c 'import fcntl; fcntl.fcntl(open(\"{file}\"), fcntl.F_SETLEASE, 1)'",
}  # fmt: skip
READ_ONLY = {
    "write": "echo broken > {bundle}",
    "append": "echo broken >> {bundle}",
    "truncate": "python3 -c 'import os; os.truncate(\"{bundle}\", 0)'",
    "rename": "mv $(readlink -f {bundle}) elsewhere",
    "rename over it": "echo broken > mine; mv mine $(readlink -f {bundle})",
    "remove": "rm -f $(readlink -f {bundle})",
    "replace the link": "ln -sfn /etc/passwd {bundle}",
    "make beside it": "touch {trust}/new",
    "rename its directory": "mv {trust} elsewhere",
}


@cache
def tried(uid: int, abi: int) -> dict[str, dict[str, object]]:
    return asyncio.run(_tried(uid, abi))


async def _tried(uid: int, abi: int) -> dict[str, dict[str, object]]:
    outputs: dict[str, dict[str, object]] = {}
    async with attacked(uid, abi=abi) as rig:
        before = contents(rig.base)
        harness = rig.base / "harness"
        for what, hidden in (("token", rig.base / "join" / "token"), ("volume id", harness / "volume-id")):
            for name, command in ON_A_HIDDEN_FILE.items():
                command = command.format(file=hidden, directory=hidden.parent)
                outputs[f"{what}: {name}"] = await rig.bash(command)
            for tool, more in (
                ("read", {}),
                ("grep", {"pattern": "."}),
                ("edit", {"old_string": "j", "new_string": "k"}),
            ):
                method = "workspace.write" if tool == "edit" else "workspace.read"
                for path in (str(hidden), "soft"):
                    answer = await rig.connection.ask(method, call(tool, "attacker", path=path, **more))
                    failed = answer["r"]["kind"] == "failed" or "No matches" in str(answer["r"])
                    outputs[f"{what}: {tool} {path[-4:]}"] = {"exitCode": int(failed), "stdout": str(answer["r"])}
        for name, command in READ_ONLY.items():
            command = command.format(bundle=harness / "egress-ca-bundle.pem", trust=harness / "trust")
            outputs[f"bundle: {name}"] = await rig.bash(command)
        outputs["unchanged"] = {"exitCode": int(contents(rig.base) == before)}
        outputs["allowed"] = await rig.bash(
            f"cat {harness}/egress-ca-bundle.pem | grep -c BEGIN; touch ~/mine && echo home"
        )
    return outputs


def contents(base: Path) -> dict[str, bytes]:
    """Of everything that is the host's."""
    paths = [*(base / "join").rglob("*"), *(base / "harness").rglob("*")]
    files = [path for path in paths if not path.is_relative_to(base / "harness" / "home")]
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in files}


@as_each
@at_each_abi
@pytest.mark.parametrize("what", ["token", "volume id", "bundle"])
def test_no_way_leads_to_it(uid: int, abi: int, what: str) -> None:
    attempts = {name: output for name, output in tried(uid, abi).items() if name.startswith(f"{what}: ")}
    assert len(attempts) >= len(READ_ONLY)
    for name, output in attempts.items():
        assert output["exitCode"] != 0, name
        assert SECRET not in str(output), name


@as_each
@at_each_abi
def test_nothing_of_the_hosts_changed_and_what_is_commands_own_is_open(uid: int, abi: int) -> None:
    outputs = tried(uid, abi)
    assert outputs["unchanged"]["exitCode"] == 1
    certificates, home = str(outputs["allowed"]["stdout"]).split()
    assert int(certificates) > 1
    assert home == "home"


@pytest.mark.parametrize("uid", [p for p in as_each.args[1] if p.values[0] == UID])
async def test_what_a_command_closes_is_opened_again(uid: int) -> None:
    """No domain stops a chmod of what one's own user owns: it must cost neither the volume's id nor the bundle."""
    async with attacked(uid) as rig:
        harness = rig.base / "harness"
        volume_id = (harness / "volume-id").read_text()
        closed = await rig.bash(
            f"cd {harness}; chmod 000 $(readlink -f egress-ca-bundle.pem) trust volume-id ../join/token ../join .; "
            "cat egress-ca-bundle.pem"
        )
        assert closed["exitCode"] != 0
        opened = await rig.bash("head -1 $SSL_CERT_FILE > /dev/null && echo open")
        assert opened["stdout"] == "open\n", opened
        rig.core.on_renew = lambda token: 401  # so it must join again
        rig.core.on_upgrade = lambda token: None
        await rig.connection.close("core is stopping")
        await rig.core.joins.count(2)
        assert rig.core.joins.all[1]["volumeId"] == volume_id.strip()
        assert rig.core.joins.all[1]["joinToken"] == SECRET


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.settimeout(10)
    asking.connect(sys.argv[1])
    asking.sendall(b"x" * 64 + b"\\n")
    asking.shutdown(socket.SHUT_WR)
    print("heard", asking.recv(9999))
"""


@as_each
async def test_a_socket_that_is_the_hosts_own_tells_a_command_nothing(uid: int) -> None:
    """The kernel does not refuse to connect to a socket that lies in a hidden directory."""
    async with attacked(uid) as rig:
        await rig.write("ask.py", ASK)
        found = sockets(rig.base)
        assert found
        for path in found:
            output = await rig.bash(f"python3 ask.py {path}")
            assert output["stdout"] in ("", "heard b''\n"), (path, output)


def sockets(base: Path) -> list[Path]:
    return [path for path in base.rglob("*") if path.is_socket()]
