"""The tool bash, once its command has ended: what the model is told of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Final

from pod_host.limits import STREAM_CHARACTERS
from pod_host.sandbox.outcomes import Completed, Json
from pod_host.sandbox.raw import Living, RawResult, StreamCapture
from pod_host.sandbox.tools.terminal import last_state

_HALF: Final = STREAM_CHARACTERS // 2


def shape_bash(raw: RawResult) -> Completed:
    """``{exitCode, stdout, stderr, truncated?, timedOut?, stdoutFile?, stderrFile?, background?, backgroundOmitted?}``.

    ``truncated`` is there when a stream was cut in its middle; ``stdoutFile`` or ``stderrFile`` then names the file with
    the bytes as they were written (the first 64 MiB of them). ``background`` lists ``{pid, command, ports?}`` of what
    still runs, ``ports`` those it listens on (TCP); ``backgroundOmitted`` counts what is not listed. How a command ended
    that did not end by itself is said in ``stderr``.
    """
    stdout, stdout_cut = _shown(raw.stdout)
    stderr, stderr_cut = _shown(raw.stderr)
    output: dict[str, Json] = {
        "exitCode": raw.exit_code,
        "stdout": stdout,
        "stderr": _with_sentences(stderr, [*_how_it_ended(raw), *raw.notices]),
    }
    if stdout_cut or stderr_cut:
        output["truncated"] = True
    if raw.timed_out:
        output["timedOut"] = True
    if stdout_cut and raw.stdout.spool is not None:
        output["stdoutFile"] = raw.stdout.spool
    if stderr_cut and raw.stderr.spool is not None:
        output["stderrFile"] = raw.stderr.spool
    if raw.survivors:
        output["background"] = [_living(process) for process in raw.survivors]
    if raw.more_survivors:
        output["backgroundOmitted"] = raw.more_survivors
    return Completed(output)


def _living(process: Living) -> dict[str, Json]:
    ports = {"ports": list(process.ports)} if process.ports else {}
    return {"pid": process.pid, "command": process.command, **ports}


def _shown(stream: StreamCapture) -> tuple[str, bool]:
    """The text for the model, and whether something of it was cut out."""
    if stream.omitted_characters == 0:
        text = last_state(stream.head + stream.tail)
        if len(text) <= STREAM_CHARACTERS:
            return text, False
        head, tail, omitted = text[:_HALF], text[-_HALF:], len(text) - 2 * _HALF
    else:
        # Each part is played by itself: what lies between is not at hand, and a screen is not worth keeping it.
        whole_head, whole_tail = last_state(stream.head), last_state(stream.tail)
        head, tail = whole_head[:_HALF], whole_tail[-_HALF:]
        omitted = stream.omitted_characters + len(whole_head) - len(head) + len(whole_tail) - len(tail)
    return f"{head}\n… [{omitted} characters omitted] …\n{tail}", True


def _how_it_ended(raw: RawResult) -> Iterator[str]:
    """A sentence for an end that was not the command's own."""
    by = f" ({raw.killed_by})" if raw.killed_by is not None else ""
    if raw.timed_out:
        yield f"Command timed out after {raw.timeout_seconds:g}s and was killed."
    elif raw.aborted:
        yield "Command was aborted and killed."
    elif raw.signal is not None:
        yield f"Command was ended by {_signal_name(raw.signal)}{by}."
    elif by:
        yield f"Command was killed{by}."


def _signal_name(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:  # a real-time signal between SIGRTMIN and SIGRTMAX has no name
        return f"signal {number}"


def _with_sentences(stderr: str, sentences: Sequence[str]) -> str:
    """Each on a line of its own."""
    for sentence in sentences:
        stderr += f"{'' if not stderr or stderr.endswith(chr(10)) else chr(10)}{sentence}"
    return stderr
