"""Output: nothing lost, nothing blocked, bounded memory, the whole kept on disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pod_host import limits
from tests.sandbox.conftest import Box
from tests.sandbox.test_endings import _resident


async def test_a_flood_is_taken_with_flat_memory_and_keeps_head_and_tail(box: Box) -> None:
    worker = (await box.sandbox.report()).pid
    await box.bash("seq 1 100000")
    before, own = _resident(worker), _resident(os.getpid())
    output = await box.bash("echo begin; head -c 300M /dev/zero | tr '\\0' x; echo; echo end")
    assert output["stdout"].startswith("begin\nxxx")
    assert output["stdout"].endswith("x\nend\n")
    assert output["truncated"] is True
    assert _resident(worker) - before < 4 * 1024
    assert _resident(os.getpid()) - own < 4 * 1024


async def test_the_whole_is_in_the_spool_and_commands_can_read_it(box: Box) -> None:
    output = await box.bash("seq 1 20000; echo half >&2")
    assert "stderrFile" not in output
    assert (await box.bash(f"seq 1 20000 | cmp - {output['stdoutFile']} && echo same"))["stdout"] == "same\n"


async def test_no_spool_file_stays_for_what_is_shown_whole(box: Box) -> None:
    """Three bytes a character: more bytes than would be shown, and not more characters."""
    output = await box.bash("for i in $(seq 9000); do printf '\\342\\202\\254'; done")
    assert output["stdout"] == "€" * 9000
    big = await box.bash("for i in $(seq 14000); do printf '\\342\\202\\254'; done")
    assert big["stdout"] == "€" * 14000
    assert os.listdir(box.config.spool) == []


async def test_one_line_of_200_000_characters_is_no_error(box: Box) -> None:
    output = await box.bash("""python3 -c 'print("x"*200000)'""")
    assert output["exitCode"] == 0
    assert f"[{200_001 - limits.STREAM_CHARACTERS} characters omitted]" in output["stdout"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("printf '\\360'", "\ufffd"),
        ("head -c 100 /dev/zero | tr '\\0' '\\377'", "\ufffd" * 100),
        ("printf '\\342'; sleep 0.05; printf '\\202'; sleep 0.05; printf '\\254'", "€"),
    ],
)
async def test_bytes_are_decoded_without_loss(box: Box, command: str, text: str) -> None:
    assert (await box.bash(command))["stdout"] == text


async def test_a_character_across_the_border_of_a_pipe_is_whole(box: Box) -> None:
    script = "import sys; sys.stdout.buffer.write(b'x' * 65535 + '€'.encode() * 70000)"
    output = await box.bash(f'python3 -c "{script}"')
    assert "\ufffd" not in output["stdout"]
    assert output["stdout"].endswith("€")
    omitted = 65_535 + 70_000 - limits.STREAM_CHARACTERS
    assert f"[{omitted} characters omitted]" in output["stdout"]


async def test_both_streams_may_flood_at_once(box: Box) -> None:
    output = await box.bash("seq 1 300000 & seq 1 300000 >&2; wait; echo end; echo end >&2")
    assert output["stdout"].endswith("\nend\n")
    assert output["stderr"].endswith("\nend\n")


async def test_a_child_that_never_stops_writing_does_not_hold_the_answer(box: Box) -> None:
    output = await box.bash("yes & echo ok >&2")
    assert output["stderr"] == "ok\n"
    assert [entry["command"] for entry in output["background"]] == ["yes"]
    assert (await box.bash("echo next"))["stdout"] == "next\n"


async def test_a_flood_of_one_session_does_not_hold_up_another(box: Box) -> None:
    flood = box.start("yes | head -c 2G", "flood")
    assert (await box.bash("echo quick", "other"))["stdout"] == "quick\n"
    flood.abort()
    await flood.outcome()


async def test_a_spool_that_cannot_be_written_costs_only_the_file(box: Box) -> None:
    await box.bash(f"chmod 500 {box.config.spool}")
    output = await box.bash("seq 1 20000")
    assert output["truncated"] is True
    assert "stdoutFile" not in output


@pytest.mark.parametrize("instead", ["true", "ln -s /etc {spool}", "touch {spool}", "mkdir {spool}"])
async def test_a_spool_that_a_command_took_away_is_made_again(box: Box, instead: str) -> None:
    await box.bash("seq 1 20000")
    await box.bash(f"rm -rf {box.config.spool}; {instead.format(spool=box.config.spool)}")
    output = await box.bash("seq 1 20000")
    assert (await box.bash(f"tail -n 1 {output['stdoutFile']}"))["stdout"] == "20000\n"


async def test_many_results_at_once_keep_their_own_output(box: Box) -> None:
    outputs = await asyncio.gather(*(box.bash(f"seq {n} {n + 20000} | tail -n 1", f"s{n}") for n in range(50)))
    assert [output["stdout"] for output in outputs] == [f"{n + 20000}\n" for n in range(50)]


def test_the_oldest_spool_file_goes_first(tmp_path: Path) -> None:
    from pod_host.sandbox.worker.spool import Spool

    (tmp_path / "left").write_bytes(b"x" * 400)
    spool = Spool(str(tmp_path), most_bytes=1000)
    for name in ("a", "b", "c"):
        file = spool.open(name)
        file.write(b"x" * 300)
        assert file.close(keep=True) == str(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]
    growing = spool.open("d")
    growing.write(b"x" * 800)
    assert os.listdir(tmp_path) == ["d"]
    growing.close(keep=True)


def test_a_stream_has_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pod_host.sandbox.worker.spool import Spool

    monkeypatch.setattr(limits, "SPOOL_STREAM_BYTES", 1000)
    file = Spool(str(tmp_path)).open("a")
    for _ in range(5):
        file.write(b"x" * 300)
    path = file.close(keep=True)
    assert path is not None
    assert Path(path).stat().st_size == 1000
