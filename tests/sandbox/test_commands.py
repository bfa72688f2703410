"""Ordinary commands: what they see, how they end, what they leave behind."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from pod_host import limits
from pod_host.sandbox import Failed
from tests.sandbox.conftest import Box, alive, eventually, processes_of


@pytest.mark.parametrize("command", ["nohup sh -c 'sleep 5 &'", "(sleep 5 &) ; true", "sleep 5 & disown"])
async def test_a_child_left_in_the_background_lives_on_after_the_answer(box: Box, command: str) -> None:
    output = await box.bash(command)
    assert output["exitCode"] == 0
    assert [entry["command"] for entry in output["background"]] == ["sleep 5"]
    assert alive(output["background"][0]["pid"])


async def test_all_output_of_the_shell_comes_though_a_child_holds_the_pipes(box: Box) -> None:
    output = await box.bash("(sleep 30 &); seq 1 200000")
    assert output["stdout"].endswith("\n199999\n200000\n")
    assert "sleep 30" in await box.living()


async def test_a_server_answers_after_the_call_that_started_it(box: Box) -> None:
    await box.bash("echo hello > index.txt")
    started = await box.bash("python3 -u -m http.server 0 --bind 127.0.0.1 > log 2>&1 &")
    assert started["exitCode"] == 0
    assert (await box.bash("echo ok"))["stdout"] == "ok\n"
    fetch = "p=$(grep -oE 'port [0-9]+' log | grep -oE '[0-9]+'); curl -s --noproxy '*' 127.0.0.1:$p/index.txt"
    await eventually(lambda: _says(box, fetch, "hello\n"))


async def _says(box: Box, command: str, text: str) -> bool:
    return bool((await box.bash(command))["stdout"] == text)


async def test_a_survivor_that_goes_on_writing_is_neither_blocked_nor_killed(box: Box) -> None:
    """It writes far more than a pipe holds after the answer, then proves that it got through."""
    await box.bash("(while [ ! -e go ]; do sleep 0.02; done; head -c 3M /dev/zero; echo through > mark) &")
    await box.bash("touch go")
    await eventually(lambda: _says(box, "cat mark 2>/dev/null", "through\n"))


async def test_no_zombie_stays_below_us(box: Box) -> None:
    await asyncio.gather(*(box.bash("sleep 0.1 &", f"s{n % 8}") for n in range(200)))
    worker = (await box.sandbox.report()).pid

    async def settled() -> bool:
        return not await box.living() and "Z" not in processes_of(worker).values()

    await eventually(settled)


async def test_exit_codes_stay_right_while_orphans_end_at_random(box: Box) -> None:
    times = random.Random(1)
    orphans = "".join(f"(sleep {times.random():.3f} &);" for _ in range(100))
    await asyncio.gather(*(box.bash(orphans, f"o{n}") for n in range(5)))
    outputs = await asyncio.gather(*(box.bash("exit 7", f"s{n % 16}") for n in range(500)))
    assert {output["exitCode"] for output in outputs} == {7}


async def test_a_variable_that_no_program_can_be_given_is_left_out(box: Box) -> None:
    box.environment |= {"HALF": "\ud83d", "NUL": "a\0b", "": "x", "A=B": "x", "WHOLE": "é"}
    output = await box.bash('echo "[$HALF$NUL$WHOLE]"')
    assert output["stdout"] == "[é]\n"


async def test_a_timeout_beyond_the_kernels_time_is_none(box: Box) -> None:
    assert (await box.command("echo done", 1e18))["stdout"] == "done\n"
    assert (await box.bash("echo alive"))["stdout"] == "alive\n"


async def test_stdin_is_at_its_end(box: Box) -> None:
    assert (await box.bash("cat; echo done"))["stdout"] == "done\n"
    assert (await box.bash("read x; echo got:$x"))["stdout"] == "got:\n"


async def test_there_is_no_terminal(box: Box) -> None:
    output = await box.bash("exec 3<>/dev/tty && echo opened")
    assert output["exitCode"] != 0
    assert "opened" not in output["stdout"]


async def test_each_command_is_its_own_session_and_inherits_no_descriptor(box: Box) -> None:
    output = await box.bash('[ "$(ps -o sid= -p $$ | tr -d " ")" = $$ ] && ls /proc/$$/fd; true')
    assert output["stdout"].split() == ["0", "1", "2"]


@pytest.mark.parametrize("length", [1000, limits.ARGUMENT_BYTES, 131_071, 131_072, 1_000_000])
async def test_long_scripts_run(box: Box, length: int) -> None:
    script = "echo $0 $-; ls /proc/self/fd; exit 3 #"
    short = await box.bash(script)
    long = await box.bash(script + "x" * (length - len(script)))
    assert long == short
    assert short["exitCode"] == 3
    assert short["stdout"].split()[-4:] == ["0", "1", "2", "3"]  # the last is the directory itself


async def test_a_long_script_may_hold_quotes_and_many_lines(box: Box) -> None:
    script = "cat <<'END' | wc -c\n" + "'\"`$(x)\\\n" * 60_000 + "END\n"
    assert (await box.bash(script))["stdout"].strip() == str(len("'\"`$(x)\\\n") * 60_000)


async def test_one_call_cannot_spoil_the_next(box: Box) -> None:
    killed = await box.bash("kill -9 $$")
    assert killed["exitCode"] == 137
    assert "SIGKILL" in killed["stderr"]
    assert (await box.bash("exec false"))["exitCode"] == 1
    assert (await box.bash("ulimit -n 3; ulimit -m 1; ulimit -x 1; true"))["exitCode"] == 0
    assert (await box.bash("echo ok"))["stdout"] == "ok\n"


async def test_a_script_written_and_run_at_once_is_never_busy(box: Box) -> None:
    async def one(number: int) -> dict[str, object]:
        text = "#!/bin/sh\necho ran\n"
        command = f"printf '{text}' > run{number}; chmod 755 run{number}; ./run{number}"
        return await box.bash(command.replace("\n", "\\n"), f"s{number}")

    outputs = await asyncio.gather(*(one(number) for number in range(200)))
    assert {(output["stdout"], output["stderr"], output["exitCode"]) for output in outputs} == {("ran\n", "", 0)}


async def test_a_script_written_by_a_tool_is_never_busy(box: Box) -> None:
    async def one(number: int) -> str:
        path = f"tool{number}"
        box.submit("write", f"s{number}", path=path, content="#!/bin/sh\necho ran\n")
        output = await box.bash(f"chmod 755 {path}; ./{path}", f"s{number}")
        return str(output["stdout"] + output["stderr"])

    assert set(await asyncio.gather(*(one(number) for number in range(100)))) == {"ran\n"}


async def test_dispositions_of_signals_are_the_default(box: Box) -> None:
    output = await box.bash("grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -d '\\t'")
    assert output["stdout"] == "SigBlk:0000000000000000\nSigIgn:0000000000000000\n"
    assert (await box.bash("yes | head -n 1; echo ${PIPESTATUS[0]}"))["stdout"] == "y\n141\n"


async def test_the_kernel_would_take_commands_before_us(box: Box) -> None:
    raised = int((await box.bash("cat /proc/self/oom_score_adj"))["stdout"])
    assert raised > int((await box.bash(f"cat /proc/{os.getpid()}/oom_score_adj"))["stdout"])


async def test_a_directory_that_is_missing_is_a_clear_failure(box: Box) -> None:
    from pod_host.sandbox import Command

    outcome = await box.sandbox.submit(Command("one", "true", "/no/such", box.environment, 5.0)).outcome()
    assert isinstance(outcome, Failed)
    assert "/no/such" in outcome.message


async def test_an_environment_that_is_too_large_is_a_clear_failure(box: Box) -> None:
    box.environment = {**box.environment, "BIG": "x" * 200_000}
    outcome = await box.start("true").outcome()
    assert isinstance(outcome, Failed)
    assert "Argument list too long" in outcome.message


async def test_half_a_surrogate_pair_in_a_command_is_no_crash(box: Box) -> None:
    await box.start("echo '\ud83d' > half").outcome()
    assert (await box.bash("wc -c < half"))["stdout"].strip() == "4"
