"""What commands and tools cannot reach, at every Landlock ABI that the kernel can be held to."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pod_host.sandbox import Completed, Failed, PutFile, ReadBytes, kernel
from tests.sandbox.conftest import Box, alive, eventually, nice

KERNEL = kernel.landlock_abi()
ABIS = [pytest.param(abi, marks=pytest.mark.skipif(abi > KERNEL, reason=f"no ABI {abi}")) for abi in range(2, 8)]
needs_landlock = pytest.mark.skipif(KERNEL == 0, reason="this kernel has no Landlock")

READS = [
    "cat {hidden}/token",
    "ln -s {hidden}/token link && cat link",
    "ln {hidden}/token hard",
    "mv {hidden}/token moved",
    "cp {hidden}/token copy",
    "cat /proc/{worker}/root{hidden}/token",
    "cat /proc/self/root{hidden}/token",
    "cd {hidden} && cat token",
    "exec 3<{hidden}/token",
    "echo x > {hidden}/token",
    "touch {hidden}/new",
    "rm {hidden}/token",
    "mkdir {hidden}/d",
    "unshare -r cat {hidden}/token",
    'python3 -c \'import os; f = os.open("{hidden}/token", os.O_PATH); open(f"/proc/self/fd/{{f}}").read()\'',
]


@pytest.mark.parametrize("abi", ABIS)
async def test_hidden_files_are_out_of_reach_and_ordinary_work_is_whole(make_box: Any, abi: int) -> None:
    box: Box = await make_box(landlock_abi=abi, require=frozenset({"files"}))
    assert box.sandbox.confinement.abi == abi
    worker = (await box.sandbox.report()).pid
    for command in READS:
        output = await box.bash(command.format(hidden=box.hidden, worker=worker))
        assert output["exitCode"] != 0, command
        assert "join-token" not in output["stdout"], command
    assert (box.hidden / "token").read_text() == "join-token"
    for path in (box.hidden / "token", box.workspace / "link"):
        for tool, more in (
            ("read", {}),
            ("edit", {"old_string": "join", "new_string": "x"}),
            ("grep", {"pattern": "j"}),
        ):
            outcome = await box.submit(tool, path=str(path), **more).outcome()
            assert "join-token" not in str(outcome), (tool, path)
        assert isinstance(await box.sandbox.submit(ReadBytes("one", str(path), 0, 100)).outcome(), Failed)
    write = await box.submit("write", path=str(box.hidden / "token"), content="x").outcome()
    assert isinstance(write, Failed)
    assert (box.hidden / "token").read_text() == "join-token"
    whole = await box.bash(
        "set -e; mkdir -p a b; echo 1 > a/f; mv a/f b/; ln b/f a/g; touch ~/x; mv ~/x a/; mktemp; "
        "git init -q r; cd r; mkdir d; touch d/f; git add .; git mv d/f f; git commit -qm x; git log --format=%an; "
        "python3 -c 'import multiprocessing; multiprocessing.Lock()'; echo whole"
    )
    assert whole["stdout"].endswith("Agent\nwhole\n"), whole


@pytest.mark.parametrize("abi", [pytest.param(0), *ABIS])
async def test_a_command_can_do_nothing_to_the_worker(make_box: Any, abi: int) -> None:
    """Signals by every way, limits, priorities, memory: refused, with Landlock's scope or, below ABI 6, by seccomp."""
    box: Box = await make_box(landlock_abi=abi)
    worker = (await box.sandbox.report()).pid
    urgency = nice(worker)
    attacks = Path(__file__).with_name("attacks.py").read_bytes()
    await box.sandbox.submit(PutFile("one", "attacks.py", attacks)).outcome()
    output = await box.bash(f"python3 attacks.py {worker}")
    result = json.loads(output["stdout"])
    # With the scope (ABI 6) an owner may be set, and its signal is dropped: the worker's life is the proof.
    harmless = {name for name in result if name.startswith("sigio")} if abi >= 6 else set()
    through = {name: code for name, code in result.items() if code not in (errno.EPERM, errno.EACCES)}
    assert set(through) <= harmless, through
    assert alive(worker)
    assert (await box.sandbox.report()).pid == worker
    assert nice(worker) == urgency


async def test_a_command_may_still_tune_itself(box: Box) -> None:
    output = await box.bash(
        "set -e; ulimit -n 100; nice -n 5 true; renice -n 19 $$ >/dev/null; taskset -pc 0 $$ >/dev/null; taskset -c 0 true; "
        "ionice -c 3 true; prlimit --nofile=50 true; sh -c 'kill $$' || true; sleep 9 & kill $!; wait $! || echo fine"
    )
    assert output["stdout"] == "fine\n", output


async def test_a_command_can_stop_a_server_of_an_earlier_one(box: Box) -> None:
    server = await box.bash("sleep 600 >/dev/null 2>&1 & echo $!")
    assert (await box.bash(f"kill {server['stdout']}"))["exitCode"] == 0
    await eventually(lambda: not alive(int(server["stdout"])))


async def test_nothing_of_the_host_shows_in_what_a_command_is_given(box: Box) -> None:
    os.environ["NYLORUN_TEST_SECRET"] = "s3cret"
    try:
        output = await box.bash("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")
    finally:
        del os.environ["NYLORUN_TEST_SECRET"]
    assert "s3cret" not in output["stdout"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the second ABI is x86's")
async def test_calls_of_a_foreign_abi_are_closed(box: Box) -> None:
    """Their numbers mean other calls, so the filter could be walked around."""
    script = (
        "import ctypes, mmap, sys; m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex(sys.argv[1])); "
        "r = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))(); print(r)"
    )
    i386 = "b814000000cd80c3"  # mov eax, 20 (getpid); int 0x80; ret
    assert (await box.bash(f"exec python3 -c '{script}' {i386}"))["exitCode"] == 128 + 31  # SIGSYS
    x32 = "b8270000400f05c3"  # mov eax, 39 (getpid) | the x32 bit; syscall; ret
    assert (await box.bash(f"python3 -c '{script}' {x32}"))["stdout"] == f"{-errno.ENOSYS}\n"


@needs_landlock
async def test_an_exception_below_a_hidden_directory_may_hide_something_again(
    make_box: Any, open_directory: Path
) -> None:
    inner = open_directory / "hidden" / "open" / "closed"
    inner.mkdir(parents=True)
    (inner / "f").write_text("x")
    (inner.parent / "g").write_text("y")
    box: Box = await make_box(
        denied=(open_directory / "hidden", inner), allowed=(inner.parent, open_directory / "hidden" / "home")
    )
    assert (await box.bash(f"cat {inner.parent}/g"))["stdout"] == "y"
    assert (await box.bash(f"cat {inner}/f"))["exitCode"] != 0
    assert (await box.bash("touch ~/f"))["exitCode"] == 0


@needs_landlock
async def test_a_link_to_a_hidden_directory_hides_what_it_names(make_box: Any, open_directory: Path) -> None:
    (open_directory / "named").symlink_to("hidden")
    box: Box = await make_box(denied=(open_directory / "named",))
    assert (await box.bash(f"cat {box.hidden}/token"))["exitCode"] != 0


async def test_what_is_missing_is_said(make_box: Any) -> None:
    nothing: Box = await make_box(landlock_abi=0, seccomp=False)
    assert nothing.sandbox.confinement.held == frozenset()
    files, signals, limits = nothing.sandbox.confinement.exposed
    assert str(nothing.hidden) in files
    assert "end host and worker by a signal" in signals
    assert "limits, priorities and processors" in limits
    filters: Box = await make_box(landlock_abi=0)
    assert filters.sandbox.confinement.held == {"limits"}
    assert "guarded by seccomp alone" in filters.sandbox.confinement.exposed[1]
    full: Box = await make_box()
    if KERNEL >= 6:
        assert full.sandbox.confinement.held == {"files", "signals", "limits"}
        assert full.sandbox.confinement.exposed == ()


async def test_ripgrep_runs_though_its_directory_is_hidden(make_box: Any) -> None:
    """On a laptop the program's own environment lies in the home directory, which is hidden."""
    from pod_host.sandbox.ripgrep import find_ripgrep

    ripgrep = find_ripgrep()
    if ripgrep is None or KERNEL == 0:
        pytest.skip("no ripgrep, or nothing to hide it with")
    box: Box = await make_box(denied=(ripgrep.parent,))
    await box.bash("echo needle > hay")
    outcome = await box.submit("grep", pattern="needle").outcome()
    assert isinstance(outcome, Completed)
    assert "hay" in outcome.output
