"""Compaction end to end: ``pod-host dev`` as processes, until the model's window is full or its provider says that it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.dev.provider_rig import Provider, provider, refusal
from tests.dev.test_command import COMMAND, PATIENCE, REPOSITORY, dev, environment, place
from tests.dev.test_openai import completion

__all__ = ["place"]

SUMMARISED = "the conversation was summarised to fit the model's window"
LONG = "It belongs to this: " + "a long note. " * 16_000  # about 52 000 tokens


async def test_a_full_window_is_compacted_and_the_session_goes_on_after_it_with_a_new_host(place: Path) -> None:
    talk = [f"run `echo answer-{number}`. {LONG}" for number in range(4)]
    first = dev(place, "--keep", str(place / "kept"), stdin="\n".join([*talk, "run `echo beyond`"]) + "\n")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count(SUMMARISED) == 1
    assert first.stdout.count("— completed") == 5
    assert first.stdout.index("answer-2\n") < first.stdout.index(SUMMARISED) < first.stdout.index("    beyond\n")
    second = dev(place, "--keep", str(place / "kept"), stdin="run it again\n")
    assert second.returncode == 0, second.stderr
    assert "going on with the session" in second.stdout
    assert "$ echo beyond" in second.stdout  # what the compacted conversation holds of it
    assert SUMMARISED not in second.stdout


async def talk(place: Path, served: Provider, *messages: str) -> str:
    keys = {"OPENAI_API_KEY": "secret-key", "OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_MODEL": "llama"}
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        cwd=REPOSITORY,
        env=environment(place) | keys,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    shown, faults = await asyncio.wait_for(process.communicate("\n".join(messages).encode() + b"\n"), PATIENCE)
    assert process.returncode == 0, faults.decode() + shown.decode()
    return shown.decode()


async def test_a_call_that_overflows_the_window_is_asked_again_with_a_summary(place: Path) -> None:
    overflow = refusal(400, {"error": {"code": "context_length_exceeded", "message": "It is too long."}})
    answers = [completion({"content": text}) for text in ("Noted.", "THE SUMMARY", "After all.", "And on.")]
    async with provider(answers[0], overflow, *answers[1:]) as served:
        shown = await talk(place, served, LONG, "Does it fit?", "And now?")
    assert shown.count(SUMMARISED) == 1
    assert "After all." in shown
    summary, again, later = ([str(message) for message in body["messages"]] for body in served.bodies[2:])
    assert "tools" not in served.bodies[2]
    assert "<conversation>" in summary[-1]
    assert "a long note." in summary[-1]
    for prompt in (again, later):
        assert "THE SUMMARY" in prompt[1]
        assert not any("a long note." in message for message in prompt)
        assert any("Does it fit?" in message for message in prompt)
    assert "And now?" in later[-1]
