"""What one WebSocket message after another does to the channel's brain (`contract.rpc.Peer`)."""

from __future__ import annotations

from pod_host.contract import rpc
from pod_host.contract.base import JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.contract.methods import CORE_ASKS, CORE_SAYS, HARNESS_ASKS
from pod_host.errors import ContractViolation
from tests.fuzz import hostile
from tests.fuzz.source import Source, pick

ASKED = (
    "hello",
    "lease",
    "lease.renew",
    "effect.intent",
    "effect.outcome",
    "transcript.read",
    "artifact.read",
    "event",
)
RUN = {"runId": "run_1", "sessionId": "ses_1", "turnId": "turn_1", "epoch": 1, "token": "t", "tokenExpiresAt": None}
ANSWERS: tuple[JsonObject, ...] = (
    {"api": 5, "tenantId": "t", "sandbox": {"backend": "local"}, "renewEveryMs": 15000},
    {"run": RUN, "input": {}},
    {"ok": True, "token": "t", "tokenExpiresAt": "2030-01-01T00:00:00Z"},
    {"status": "execute", "rejoin": True},
    {"status": "completed", "outcome": {"value": 1}},
    {"cursor": 3, "entries": [{"kind": "final", "turnId": "t", "stepId": "s", "output": None}]},
    {"artifactId": "a", "version": 1, "base64": "AA=="},
    {},
)
WORKSPACE = {"call": {"tool": "read", "input": {"path": "a"}, "session": {"ownerId": "ses_1"}}}
FRAMES = (
    {"t": "ping"},
    {"t": "abort", "id": 1},
    {"t": "msg", "m": "cancel", "p": {"runId": "run_1", "reason": "cancel", "message": "no"}},
    {"t": "req", "id": 1, "m": "workspace.read", "p": WORKSPACE},
    {"t": "res", "id": 1, "ok": False, "e": {"code": "unavailable", "message": "no"}},
    *({"t": "res", "id": number, "ok": True, "r": answer} for number, answer in enumerate(ANSWERS, 1)),
)


def frame(source: Source) -> str:
    return hostile.json_text(source, pick(source, FRAMES))


def run(source: Source) -> None:
    peer = rpc.Peer(asks=HARNESS_ASKS, serves=CORE_ASKS, hears=CORE_SAYS)
    waiting = {peer.request(method, {})[0] for method in ASKED}
    for _ in range(1 + source.below(6)):
        heard = frame(source)
        for event in peer.receive(heard if source.below(16) != 1 else heard.encode("utf-8", "surrogatepass")):
            sent: object = None
            match event:
                case rpc.Send(sent):
                    pass
                case rpc.Close(code, reason):
                    assert code in (1000, 1007)
                    assert len(reason.encode()) <= rpc.CLOSE_REASON_BYTES
                    return
                case rpc.Serve(number):
                    sent = _served(source, peer, number)
                case rpc.Settle(number):
                    waiting.remove(number)  # each request is settled once
            if sent is not None:
                crossed = encode(sent)
                assert len(crossed) <= 8 * len(heard) + 4096, "an answer grows out of proportion"
                assert isinstance(decode(crossed)["id"], int | float)


def _served(source: Source, peer: rpc.Peer, number: int) -> object:
    if source.below(2):
        return peer.refuse(number, hostile.text(source), "no")
    answer = peer.answer(number, hostile.mutated(source, {"kind": "completed", "output": {}}))
    try:
        encode(answer)
    except ContractViolation:  # of our own answer: nested too deeply
        return None
    return answer if len(encode(answer)) < 2048 else None
