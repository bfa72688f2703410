"""``pod-host dev`` whole: the embedded Runtime, the real host and a chat, as processes."""

from __future__ import annotations

import argparse
import asyncio
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pod_host.dev import command, directories
from tests.dev.provider_rig import provider
from tests.dev.test_openai import completion

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds; a bound for what is waited for, never a measure
COMMAND = [sys.executable, "-m", "pod_host", "dev"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the commands' user can reach; it stands for root's state too."""
    with tempfile.TemporaryDirectory(prefix="pod-host-test-") as name:
        path = Path(name).resolve()
        path.chmod(0o711)
        yield path


def environment(place: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "OPENAI"))}
    return {**kept, "XDG_STATE_HOME": str(place / "state"), "TERM": "xterm"}


def dev(place: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=REPOSITORY,
        env=environment(place),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def started(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=REPOSITORY,
        env=environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], words: str) -> str:
    """Read its lines up to the one that holds ``words``."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it ended before it said {words!r}: {process.stderr and process.stderr.read()}")


def host_of(process: subprocess.Popen[str]) -> psutil.Process:
    (host,) = psutil.Process(process.pid).children()
    return host


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE / 2)
    return not alive


# --- One message -----------------------------------------------------------------------------------------------------


def test_one_message_shows_its_turn_and_ends_with_0(place: Path) -> None:
    ran = dev(place, "--message", "build fizzbuzz")
    assert ran.returncode == 0, ran.stderr
    assert "▸ bash  $ python3 test_fizzbuzz.py" in ran.stdout or "python3 is missing" in ran.stdout
    assert re.search(r"6 of 6 cases pass", ran.stdout)
    assert re.search(r"^— completed · .* model calls, \d+ tool calls", ran.stdout, re.MULTILINE)
    assert "\x1b" not in ran.stdout
    workspace = re.search(r"workspace (/\S+)", ran.stdout)
    assert workspace
    assert not Path(workspace[1]).exists()


def test_what_is_no_utf_8_and_what_the_terminal_cannot_show_end_nothing(place: Path) -> None:
    ran = subprocess.run(
        [*COMMAND, b"--message=list the files: caf\xe9"],
        cwd=REPOSITORY,
        env={**environment(place), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    assert b"? completed" in ran.stdout


def test_make_passes_a_message_on_as_it_is(place: Path) -> None:
    """Whatever it begins with, and what a shell would read in it."""
    ours = {name: value for name, value in environment(place).items() if "MAKE" not in name and name != "ARGS"}
    (place / "pod-host").write_text('#!/bin/sh\nprintf %s "$2"\n')
    (place / "pod-host").chmod(0o755)
    make = ["make", "--old-file", ".venv/.dev", "dev", f"BIN={place}"]
    for message in ("--help", '$ echo $(x) $$ it\'s "$HOME" `date`\nand more'):
        for said, env in (([f"MESSAGE={message}"], ours), ([], {**ours, "MESSAGE": message})):
            ran = subprocess.run(
                [*make, *said], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True, timeout=PATIENCE
            )
            assert ran.stdout == f"--message={message}"
    assert subprocess.run([*make], cwd=REPOSITORY, env=ours, capture_output=True, check=True).stdout == b""


def test_a_pipe_is_a_message_on_each_line(place: Path) -> None:
    ran = dev(place, stdin="run `echo $((40 + 2))`\nlist the files\n")
    assert ran.returncode == 0, ran.stderr
    assert "› run `echo $((40 + 2))`" in ran.stdout
    assert "    42" in ran.stdout
    assert ran.stdout.count("— completed") == 2


async def test_a_key_and_a_base_url_take_any_compatible_server(place: Path) -> None:
    function = {"name": "bash", "arguments": '{"command": "echo $((40 + 2))"}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    async with provider(
        completion({"tool_calls": calls}, "tool_calls"), completion({"content": "It is 42."})
    ) as served:
        keys = {"OPENAI_API_KEY": "secret-key", "OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_MODEL": "llama"}
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "--message",
            "how much?",
            cwd=REPOSITORY,
            env=environment(place) | keys,
            stdout=asyncio.subprocess.PIPE,
        )
        output = (await process.communicate())[0].decode()
    assert process.returncode == 0
    assert "model llama (openai)" in output
    assert "    42\n    exit 0" in output
    assert "It is 42." in output
    (result,) = [message for message in served.bodies[1]["messages"] if message["role"] == "tool"]
    assert result["tool_call_id"] == "call_1"
    assert "42" in result["content"]


# --- A kept workspace ------------------------------------------------------------------------------------------------

AGENT = """
name: kept
setup:
  files: [{path: hello.txt, content: "hi\\n"}]
  commands: ["echo set-up >> marks.txt", {command: "false", name: the last step}]
environment: {GREETING: good day}
"""


def test_a_kept_workspace_goes_on_with_its_session_and_its_setup_is_not_run_again(place: Path) -> None:
    agent = place / "agent.yaml"
    agent.write_text(AGENT)
    workspace = place / "workspace"
    arguments = ("--keep", str(workspace), "--agent", str(agent))
    try:
        first = dev(place, *arguments, "--message", "run `cat hello.txt; echo $GREETING`")
        assert first.returncode == 0, first.stderr
        assert "setup 1/3  hello.txt" in first.stdout
        assert "setup 3/3  the last step" in first.stdout
        assert "setup failed: exit code 1" in first.stdout
        assert "    good day" in first.stdout
        second = dev(place, *arguments, "--message", "run it again")
        assert second.returncode == 0, second.stderr
        assert "setup 1/3" not in second.stdout
        assert "going on with the session of" in second.stdout
        assert "$ cat hello.txt; echo $GREETING" in second.stdout, "the session's history is there"
        assert (workspace / "marks.txt").read_text() == "set-up\n"
    finally:
        forget(workspace, place)


def forget(workspace: Path, place: Path) -> None:
    """Root's state lies where every root's does."""
    state = directories.state_of(workspace.resolve(), environment(place))
    subprocess.run(["rm", "-rf", str(state)], check=True)


# --- Faults: one clear line each -------------------------------------------------------------------------------------


def told(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    return line


def test_a_malformed_agent_file_is_told(place: Path) -> None:
    (place / "agent.yaml").write_text("name: x\ninstrctions: y\n")
    ran = dev(place, "--agent", str(place / "agent.yaml"), "--message", "hi")
    assert ran.returncode == 1
    assert told(ran).startswith(
        f"pod-host: {place}/agent.yaml: instrctions: no such member; did you mean instructions?"
    )


def test_what_the_agent_file_names_and_is_not_there_is_told(place: Path) -> None:
    (place / "agent.yaml").write_text(
        "name: x\nmcpServers: [{name: m, url: 'http://127.0.0.1:1', headers: {A: '${NOT_SET_HERE}'}}]\n"
        "setup: {commands: [exit 3]}\n"
    )
    ran = dev(place, "--agent", str(place / "agent.yaml"), "--message", "list the files", "--keep", str(place / "work"))
    assert "warning: the MCP server m needs the variable NOT_SET_HERE, which is not set\n" in ran.stdout
    failed = re.search(r"setup failed: exit code 3; its whole output: (/\S+)", ran.stdout)
    assert failed
    assert "exit code 3" in Path(failed[1]).read_text()


@pytest.mark.parametrize("name", ["harness", "gates", "egress", "north"])
def test_a_taken_port_is_told(place: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = dev(place, f"--{name}-port", str(port), "--message", "hi")
    assert ran.returncode == 1
    assert told(ran) == f"pod-host: {name} port {port} on 127.0.0.1 is taken"


def test_a_workspace_that_is_none_is_told(place: Path) -> None:
    (place / "file").write_text("x")
    ran = dev(place, "--keep", str(place / "file"), "--message", "hi")
    assert ran.returncode == 1
    assert told(ran) == f"pod-host: --keep: {place}/file is not a directory"


@pytest.mark.parametrize(
    "arguments", [["--nope"], ["--north-port", "x"], ["--agent"], ["--keep", ""], ["--message", " "]]
)
def test_unknown_words_are_usage(place: Path, arguments: list[str]) -> None:
    ran = dev(place, *arguments)
    assert ran.returncode == 64
    assert ran.stderr.startswith("usage: ")


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_a_host_that_dies_is_told_and_never_started_again(place: Path) -> None:
    process = started(place, "--message", "run `sleep 600`")
    until(process, "$ sleep 600")
    family = psutil.Process(process.pid).children(recursive=True)
    host_of(process).kill()
    _, faults = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert faults.startswith("pod-host: the host ended with signal 9; its last log lines:\n")
    assert all_gone(family)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(place: Path, number: signal.Signals) -> None:
    process = started(place, "--message", "run `sleep 600`")
    until(process, "$ sleep 600")
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert all_gone(family)


def test_when_it_is_killed_its_host_goes_too(place: Path) -> None:
    process = started(place, "--message", "run `sleep 600`")
    workspace = Path(until(process, " · workspace ").split(" · workspace ")[1].strip())
    try:
        until(process, "$ sleep 600")
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=PATIENCE)
        assert all_gone(family)
    finally:
        shutil.rmtree(workspace.parent)  # nobody was left to do it


def test_interrupting_a_message_cancels_its_turn(place: Path) -> None:
    process = started(place, "--message", "run `sleep 600`")
    until(process, "$ sleep 600")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert "— cancelled" in output
    assert process.returncode == 1


# --- A terminal ------------------------------------------------------------------------------------------------------


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(REPOSITORY)
            no_questions = {"PROMPT_TOOLKIT_NO_CPR": "1"}  # this terminal does not say where its cursor is
            os.execve(COMMAND[0], [*COMMAND, *arguments], environment(place) | no_questions)
        self._seen = ""
        self._ended = False

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *fault: object) -> None:
        if not self._ended:
            os.kill(self.pid, signal.SIGTERM)
            self.exit_code()

    def until(self, pattern: str) -> str:
        """What came up to ``pattern``, and it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = re.search(pattern, self._seen)
            if found:
                shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
                return shown
            assert time.monotonic() < deadline, f"no {pattern!r} in {self._seen!r}"
            if select.select([self._fd], [], [], 1.0)[0]:
                try:
                    self._seen += os.read(self._fd, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    raise AssertionError(f"it ended before {pattern!r}: {self._seen!r}") from None

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def exit_code(self) -> int:
        """Read to its end, so that it is never held up by a full terminal."""
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        self._ended = True
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


def test_a_terminal_has_a_prompt_and_turns_are_shown_above_it(place: Path) -> None:
    with Terminal(place) as terminal:
        terminal.until("Ctrl-D(?s:.*)›")
        terminal.type("run `echo $((40 + 2))`\r")
        assert "\x1b[36m" in terminal.until(r"\b42\b"), "colours on a terminal"
        terminal.until("— completed(?s:.*)›")
        terminal.type("run `sleep 600`\r")
        terminal.until(r"▸ bash  \$ sleep 600(?s:.*)…")
        terminal.type("\x03")
        terminal.until("— cancelled(?s:.*)›")  # the prompt is back: Ctrl-D is a key again
        terminal.type("\x04")
        assert terminal.exit_code() == 0


def test_a_missing_agent_file_is_told_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("harness_port", "gates_port", "egress_port", "north_port", "keep")
    arguments = argparse.Namespace(agent="/none/agent.yaml", message="hi", **dict.fromkeys(names))
    assert command.run(arguments) == 1
    assert capsys.readouterr().err == "pod-host: /none/agent.yaml: cannot be read: No such file or directory\n"
