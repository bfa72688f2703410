"""What a step of a turn costs us: CPU beyond the round trips that it needs, in a short and in a long conversation.

A turn runs against a Runtime of three functions in this process, so what is measured is our own work: the projection of the
new entries, the request hash, the call's body, the journal. Beside it stands the floor that no harness can avoid, measured in
the same run: SHA-256 over the call's body, and sending the body; where it stands beside, our step sends it too.

    python -m bench.step
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.budgets import BUDGETS
from bench.rows import Check, Row
from bench.running import alone
from bench.series import Series
from pod_host.client import Claim, Room
from pod_host.contract.base import JsonObject, Sent
from pod_host.contract.encoding import decode
from pod_host.contract.methods import HARNESS_ASKS
from pod_host.contract.transcript import Entry
from pod_host.contract.turn_start import TurnStart
from pod_host.contract.work import RenewResult, RunGrant
from pod_host.sandbox.outcomes import Completed
from pod_host.turn import FileCache, Reported, TranscriptCache, Turn

STEPS = 30  # of one turn: a longer one is cut
ENTRIES = (10, 10_000)
WORDS = "The quick brown fox jumps over the lazy dog, and then it reads one more file of the workspace. " * 8
FIRST_STEPS = 3  # not counted: caches of a new process


@dataclass
class Runtime:
    """Answers at once. ``marks``: CPU seconds of this process as each model call arrives; ``body``: the last one."""

    entries: list[Entry]
    steps: int

    def __post_init__(self) -> None:
        self.grant = RunGrant.read({"runId": "run", "sessionId": "ses", "turnId": "turn", "epoch": 1, "token": "t"})
        self.token = "t"
        self.marks: list[float] = []
        self.body = b""

    async def request(self, method: str, params: Sent) -> Any:
        answers: dict[str, JsonObject] = {
            "transcript.read": {"cursor": 1, "entries": self.entries},
            "effect.intent": {"status": "execute"},
            "turn.completed": {"cursor": 2},
        }
        if method == "effect.outcome":
            answers[method] = {"status": "completed", "outcome": {"value": params.wire().get("value")}}
        return HARNESS_ASKS[method].read_result(answers.get(method, {}))

    async def renew(self) -> RenewResult:
        return RenewResult(ok=True)

    def claim(self) -> Claim:
        return Room(1).claim()

    async def call(
        self,
        path: str,
        body: bytes,
        *,
        key: str,
        token: Any,
        traceparent: str | None = None,
        claim: Claim | None = None,
    ) -> JsonObject:
        self.marks.append(time.process_time())
        self.body = body
        step = len(self.marks)
        if step > self.steps:
            return {"outcome": {"output": [{"type": "text", "text": "Done."}], "finishReason": "stop"}}
        block = {"type": "tool-call", "id": f"c{step}", "name": "read", "args": {"path": f"file-{step}.txt"}}
        return {"outcome": {"output": [block], "finishReason": "tool-calls"}}

    async def cancel(self, path: str, *, key: str, token: Any) -> None:
        """Nothing is ever cancelled here."""


class Call:
    async def outcome(self) -> Completed:
        return Completed("1\tone line of a file")

    def abort(self) -> None:
        """Nothing runs."""


class Sandbox:
    skills_dir = "/skills"
    plain_http = False

    def start(self, tool: str, input: JsonObject, *, traceparent: str | None) -> Call:
        return Call()

    def has_skill(self, folder: str) -> bool:
        return True

    async def mount_skill(self, folder: str, files: Any) -> None:
        """There are none."""

    async def read_bytes(self, path: str, offset: int, length: int) -> Completed:
        return Completed({"bytes": b"", "size": 0})

    async def list_folder(self, path: str, most: int) -> Completed:
        return Completed({"bytes": b"[]", "more": False})


def conversation(count: int) -> list[Entry]:
    """Entries of turns before: a message, an answer with a call, its result, and so on."""
    entries: list[Entry] = []
    for number in range(count // 2):
        turn = f"turn-{number}"
        entries.append({"kind": "input", "turnId": turn, "event": {"kind": "user-message", "text": WORDS}})
        answer = {"output": [{"type": "text", "text": WORDS}], "finishReason": "stop"}
        entries.append({"kind": "candidate", "turnId": turn, "stepId": f"{turn}.step-1", "candidate": answer})
    return entries


def start_of() -> TurnStart:
    return TurnStart.read(
        {
            "manifest": {"id": "agent", "instructions": "Be exact."},
            "checkpoint": {"sessionId": "ses", "turnId": "turn", "segment": 0, "manifestHash": "h", "input": "Go on."},
            "transcript": {"cursor": 1},
            "routing": {"sandbox": {"ownerId": "ses", "environment": {}}},
            "agent": {"id": "agent", "kind": "pod", "sandbox": {"workspace": "/workspace"}},
            "model": {"provider": "p", "id": "m", "inputs": ["text"], "contextWindow": 10**9, "maxOutputTokens": 1000},
        }
    )


async def steps_of(entries: list[Entry], steps: int) -> tuple[list[float], bytes]:
    """CPU seconds of each step, and the last call's body."""
    runtime = Runtime(entries, steps)
    turn = Turn(
        run=runtime,
        start=start_of(),
        gates=runtime,
        sandbox=Sandbox(),
        transcripts=TranscriptCache(),
        files=FileCache(),
        notes=[],
    )
    ended = await turn.run()
    assert ended == Reported("completed"), ended
    assert len(decode(runtime.body)["call"]["prompt"]) > len(entries)
    between = [after - before for before, after in zip(runtime.marks, runtime.marks[1:], strict=False)]
    return between[FIRST_STEPS:], runtime.body


def floor_of(body: bytes, rounds: int) -> tuple[list[float], list[float]]:
    """CPU seconds of SHA-256 over the body, and of sending it."""
    ours, theirs = socket.socketpair()

    def drain() -> None:
        while theirs.recv(1 << 20):
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    hashes = [_cpu(lambda: hashlib.sha256(body).digest()) for _ in range(rounds)]
    sends = [_cpu(lambda: ours.sendall(body)) for _ in range(rounds)]
    ours.close()
    reader.join()
    theirs.close()
    return hashes, sends


def _cpu(work: Callable[[], object]) -> float:
    """Of this thread alone: who reads is not us."""
    before = time.thread_time()
    work()
    return time.thread_time() - before


async def measure(short: bool) -> list[Row]:
    rows = []
    for count in ENTRIES:
        times: list[float] = []
        for _ in range(1 if short else 4):
            more, body = await steps_of(conversation(count), STEPS + FIRST_STEPS)
            times += more
        hashes, sends = floor_of(body, len(times))
        step, send = Series.of(times, 1e3), Series.of(sends, 1e3)
        floor = Series.of(hashes, 1e3).median + send.median
        limit = BUDGETS.step_cpu_ms if count == ENTRIES[0] else BUDGETS.step_cpu_ms + BUDGETS.long_step_ratio * floor
        ours = Series.of(step.values if count == ENTRIES[0] else (value + send.median for value in step.values))
        name = f"a step's CPU, {count} entries, {len(body) / 2**20:.2g} MiB"
        beside = ("SHA-256, send", Series((floor,)))
        rows.append(Row.of(name, "ms", ours, beside=beside, checks=[Check(ours.median, round(limit, 2))]))
    return rows


if __name__ == "__main__":
    alone("step", measure)
