"""One end of the channel without a socket: the vectors of the Runtime's earlier code, and both id spaces."""

from __future__ import annotations

from typing import Any

import pytest

from pod_host.contract import frames, rpc
from pod_host.contract.base import Id, JsonObject, Sent
from pod_host.contract.encoding import encode
from pod_host.contract.methods import CORE_ASKS, CORE_SAYS, HARNESS_ASKS
from pod_host.contract.work import Cancel, CancelReason, EventParams, RenewResult, event_params
from pod_host.errors import ChannelClosed, RuntimeRefusal
from tests.contract.values import vectors


class StrictCancel(Sent):
    """``cancel`` as the reference's end reads it. Ours takes an unknown member (`Received`), as a host should."""

    run_id: Id
    reason: CancelReason


def peer() -> rpc.Peer:
    return rpc.Peer(asks=HARNESS_ASKS, serves=HARNESS_ASKS, hears={"cancel": StrictCancel})


RPC = {vector["name"]: vector for vector in vectors("rpc")}
TWO_SIDED = {
    "our pending request when the peer's malformed frame closes the channel",
    "requester aborts a pending request",
}

# What the vectors' handlers do once a request has passed the checks; the others answer {"ok": true}.
HANDLERS: dict[str, Any] = {
    "handler returns nothing": None,
    "handler answers outside the schema": None,
    "handler throws with a known code": RuntimeRefusal("run_not_held", "boom"),
}


def react(vector: dict[str, Any]) -> tuple[list[JsonObject], list[JsonObject], rpc.Close | None]:
    """Frames sent, messages delivered, and the close, of one frame put in."""
    ours = peer()
    sent: list[JsonObject] = []
    delivered: list[JsonObject] = []
    closed = None
    for event in ours.receive(encode(vector["frame"]).decode()):
        match event:
            case rpc.Send(frame):
                sent.append(frame)
            case rpc.Close():
                closed = event
            case rpc.Deliver(method, params):
                delivered.append({"m": method, "p": params.wire()})
            case rpc.Serve(number):
                outcome = HANDLERS.get(vector["name"], {"ok": True})
                refused = isinstance(outcome, RuntimeRefusal)
                sent.append(
                    ours.refuse(number, outcome.code, outcome.message) if refused else ours.answer(number, outcome)
                )
            case _:
                pytest.fail(f"unexpected: {event}")
    return sent, delivered, closed


def same_refusal(ours: str, theirs: str) -> bool:
    """Refusals are for logs. The words after the last "frame: ", "request: " or "answer: " are the earlier checker's own, and
    some speak of members that v5 does not have (``slots``, an effect without ``target``); all before them is exact, and so
    is the name of an unknown member."""
    for kind in ("frame: ", "request: ", "answer: "):
        head, found, fault = theirs.rpartition(kind)
        if found:
            exact = head + found + (fault if fault.startswith("Unrecognized key") else "")
            return ours.startswith(exact) and len(ours) > len(head + found)
    return ours == theirs


@pytest.mark.parametrize("name", [name for name in RPC if name not in TWO_SIDED])
def test_rpc_vectors(name: str) -> None:
    vector = RPC[name]
    sent, delivered, closed = react(vector)
    assert delivered == vector["delivered"]
    if vector["closed"] is None:
        assert closed is None
    else:
        assert closed is not None
        assert closed.code == 1000
        assert same_refusal(closed.reason, vector["closed"])
    assert len(sent) == len(vector["answers"])
    for ours, theirs in zip(sent, vector["answers"], strict=True):
        if theirs["ok"]:
            assert ours == theirs
        else:
            assert same_refusal(ours["e"].pop("message"), theirs["e"].pop("message"))
            assert ours == theirs


def test_rpc_vector_of_a_pending_request_when_the_channel_closes() -> None:
    """The request itself carried ``slots`` then; in v5 a lease has no members."""
    vector = RPC["our pending request when the peer's malformed frame closes the channel"]
    ours = peer()
    _, frame = ours.request("lease", {})
    assert frame == {**vector["sentBefore"][0], "p": {}}
    [close] = ours.receive(encode(vector["frame"]).decode())
    assert isinstance(close, rpc.Close)
    assert same_refusal(close.reason, vector["closed"])
    assert ChannelClosed(close.reason).code == vector["rejected"]["code"]
    assert same_refusal(ChannelClosed(close.reason).message, vector["rejected"]["message"])


def test_rpc_vector_of_a_requester_that_gives_up() -> None:
    vector = RPC["requester aborts a pending request"]
    ours = peer()
    number, frame = ours.request("lease", {})
    assert [frame, ours.abort(number)] == [{**vector["sent"][0], "p": {}}, vector["sent"][1]]
    assert ours.abort(number) is None
    assert ours.receive('{"t":"res","id":1,"ok":true,"r":{}}') == []


def test_there_are_thirty_one_rpc_vectors() -> None:
    assert len(RPC) == 31


# --- The host's end ------------------------------------------------------------------------------------------------------


def host() -> rpc.Peer:
    return rpc.Peer(asks=HARNESS_ASKS, serves=CORE_ASKS, hears=CORE_SAYS)


def test_ids_count_from_one_and_answers_find_their_request_in_any_order() -> None:
    ours = host()
    assert [ours.request("lease.renew", {"runId": run})[0] for run in "abc"] == [1, 2, 3]
    [third] = ours.receive('{"t":"res","id":3,"ok":true,"r":{"ok":false}}')
    [first] = ours.receive('{"t":"res","id":1,"ok":false,"e":{"code":"internal","message":"m"}}')
    assert third == rpc.Settle(3, result=RenewResult(ok=False))
    assert isinstance(first, rpc.Settle)
    assert isinstance(first.refusal, RuntimeRefusal)
    assert (first.id, first.refusal.code) == (1, "internal")
    assert ours.receive('{"t":"res","id":1,"ok":true,"r":{"ok":true}}') == []


def test_both_ends_may_use_one_id_at_once() -> None:
    ours = host()
    ours.request("lease.renew", {"runId": "a"})
    assert ours.receive('{"t":"req","id":1,"m":"workspace.read","p":{}}') == [rpc.Serve(1, "workspace.read", {})]
    assert ours.receive('{"t":"abort","id":1}') == [rpc.GiveUp(1)]
    assert isinstance(ours.receive('{"t":"res","id":1,"ok":true,"r":{"ok":true}}')[0], rpc.Settle)
    assert ours.answer(1, {"done": True}) == {"t": "res", "id": 1, "ok": True, "r": {"done": True}}
    assert ours.receive('{"t":"abort","id":1}') == []


def test_an_id_that_is_still_served_is_not_served_twice() -> None:
    ours = host()
    ours.receive('{"t":"req","id":4,"m":"workspace.exec","p":{}}')
    [again] = ours.receive('{"t":"req","id":4,"m":"workspace.exec","p":{}}')
    assert isinstance(again, rpc.Send)
    assert again.frame["e"]["code"] == "invalid"
    assert ours.answer(4, {})["ok"] is True


def test_a_cancel_with_an_unknown_member_reaches_a_host() -> None:
    said = '{"t":"msg","m":"cancel","p":{"runId":"r1","reason":"deadline","message":null,"later":1}}'
    assert host().receive(said) == [rpc.Deliver("cancel", Cancel(run_id="r1", reason="deadline"))]


@pytest.mark.parametrize("heard", [b'{"t":"\xff"}', b"\xed\xa0\x80", "", "nonsense", "[" * 100_000, "NaN"])
def test_what_is_no_json_text_closes_with_1007(heard: str | bytes) -> None:
    assert host().receive(heard) == [rpc.Close(1007, "Harness API frames are JSON text")]


@pytest.mark.parametrize(
    "value", [None, [], 5, "x", {}, {"t": None}, {"t": []}, {"t": {}}, {"t": "req"}, {"t": "req", "id": True}]
)
def test_json_that_is_no_frame_closes(value: Any) -> None:
    [close] = host().receive_json(value)
    assert isinstance(close, rpc.Close)
    assert close.code == 1000
    assert close.reason.startswith("invalid frame: ")


def test_a_reason_for_closing_fits_a_closing_frame() -> None:
    [close] = host().receive(encode({"t": "ping", "ü" * 500: 1}).decode())
    assert isinstance(close, rpc.Close)
    assert 100 < len(close.reason.encode()) <= rpc.CLOSE_REASON_BYTES


def test_a_refusal_never_carries_a_code_outside_the_list() -> None:
    ours = host()
    ours.receive('{"t":"req","id":1,"m":"workspace.exec","p":{}}')
    refusal = ours.refuse(1, "sandbox.worker_lost", "gone")
    assert refusal["e"] == {"code": "internal", "message": "gone"}
    assert frames.read_frame(refusal) == refusal


def test_an_answer_that_is_no_object_crosses_as_invalid() -> None:
    ours = host()
    ours.receive('{"t":"req","id":1,"m":"workspace.exec","p":{}}')
    assert ours.answer(1, [])["e"]["code"] == "invalid"


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        ([], "an object is needed"),
        ({}, "t: one of res, req, msg, abort, ping is needed"),
        ({"t": "req", "id": True, "m": "m", "p": {}}, "id: a whole number above 0 is needed"),
        ({"t": "req", "id": 1.0, "m": "m", "p": {}}, "id: a whole number above 0 is needed"),
        ({"t": "req", "id": 1, "m": "", "p": {}}, "m: a text of at least one character is needed"),
        ({"t": "req", "id": 1, "m": "\udc00", "p": {}}, "m: half of a surrogate pair is no text"),
        ({"t": "req", "id": 1, "m": "m"}, "p is missing"),
        ({"t": "req", "id": 1, "m": "m", "p": {}, "q": None}, 'Unrecognized key: "q"'),
        ({"t": "msg", "m": 7, "p": {}}, "m: a text is needed"),
        ({"t": "res", "id": 1, "ok": None, "r": {}}, "ok: true or false is needed"),
        ({"t": "res", "id": 1, "ok": True, "e": {}}, "r is missing"),
        ({"t": "res", "id": 1, "ok": False, "e": []}, "e: an object is needed"),
        ({"t": "res", "id": 1, "ok": False, "e": {"code": "odd", "message": ""}}, "e: code: one of effect_drift,"),
        ({"t": "res", "id": 1, "ok": False, "e": {"code": "invalid"}}, "e: message is missing"),
        ({"t": "abort", "id": 1, "m": "m"}, 'Unrecognized key: "m"'),
        ({"t": "ping", "id": 1}, 'Unrecognized key: "id"'),
    ],
)
def test_a_malformed_frame_is_told_by_its_member(frame: Any, fault: str) -> None:
    with pytest.raises(frames.MalformedFrame) as malformed:
        frames.read_frame(frame)
    assert str(malformed.value).startswith(f"Invalid frame: {fault}")


@pytest.mark.parametrize("run_id", [None, "run-1"])
@pytest.mark.parametrize("turn_id", [None, "turn-1"])
def test_a_claim_as_it_crosses_is_what_its_model_says(run_id: str | None, turn_id: str | None) -> None:
    payload = {"tool": "bash"}
    made = event_params("sandbox.exec", payload, session_id="s-1", turn_id=turn_id, run_id=run_id)
    run = {} if run_id is None else {"run_id": run_id}
    said = EventParams(session_id="s-1", turn_id=turn_id, type="sandbox.exec", payload=payload, **run)
    assert (made, EventParams.read(made)) == (said.wire(), said)
