"""What the runs found, each as the plain case that it came down to."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pod_host.contract import rpc
from pod_host.contract.base import Json
from pod_host.contract.encoding import encode
from pod_host.contract.methods import CORE_ASKS, CORE_SAYS, HARNESS_ASKS
from pod_host.contract.open_points import SetupFault, read_setup, read_workspace_call
from pod_host.contract.turn_start import TurnStart
from pod_host.errors import ContractViolation
from pod_host.host.credentials import LIFE_SECONDS, life_seconds
from pod_host.sandbox import Failed, command_environment
from pod_host.sandbox.worker.files import FileOperations
from pod_host.turn import FileCache, Reported
from pod_host.turn.journal import Known
from pod_host.turn.mcp_results import mcp_fate
from pod_host.turn.message_files import MessageFiles
from pod_host.turn.projection import Reader
from pod_host.turn.transcripts import SegmentTranscript
from tests.turn.double import Runtime, script, text


@pytest.mark.parametrize(
    "frame",
    [
        '{"t":"res","id":1,"ok":false,"e":{"code":"\\ud800","message":"m"}}',
        '{"t":"req","id":1e400,"m":"workspace.read","p":{}}',
    ],
)
def test_a_frame_that_no_answer_can_name_closes_the_channel(frame: str) -> None:
    peer = rpc.Peer(asks=HARNESS_ASKS, serves=CORE_ASKS, hears=CORE_SAYS)
    [event] = peer.receive(frame)
    assert isinstance(event, rpc.Close)


def test_half_a_surrogate_pair_in_place_of_a_word_is_a_violation() -> None:
    checkpoint = {"sessionId": "s", "turnId": "t", "segment": 0}
    with pytest.raises(ContractViolation):
        TurnStart.read({"checkpoint": checkpoint, "memory": {"access": "\ud800"}})


@pytest.mark.parametrize("given", [10**400, float("inf")])
def test_a_time_without_an_end_is_a_fault_of_its_setup_command(given: float) -> None:
    [step] = read_setup({"commands": [{"command": "x", "timeoutMs": given}]})
    assert isinstance(step, SetupFault)


@pytest.mark.parametrize("id_", ["x" * 513, "\ud800"])
@pytest.mark.parametrize("member", ["ownerId", "activeTurnId"])
def test_a_text_that_is_no_id_is_refused_before_a_tool_runs(member: str, id_: str) -> None:
    call = {"tool": "read", "input": {"path": "a"}, "session": {member: id_}}
    with pytest.raises(ContractViolation, match=member):
        read_workspace_call("workspace.read", call)


def test_claims_beyond_any_number_leave_the_usual_life() -> None:
    claims = base64.urlsafe_b64encode(b'{"iat": 0, "exp": 1%s}' % (b"0" * 400)).decode()
    assert life_seconds(f"e30.{claims}.s", datetime(2000, 1, 1, tzinfo=UTC)) == LIFE_SECONDS


def test_a_count_of_git_settings_that_is_none_is_left_alone() -> None:
    session = {"GIT_CONFIG_COUNT": "9" * 5000}
    made = command_environment(
        base={}, home=Path("/home"), session=session, proxy=None, trust_bundle=None, traceparent=None
    )
    assert made["GIT_CONFIG_COUNT"] == session["GIT_CONFIG_COUNT"]


def test_no_directory_is_made_where_a_link_leads_out(tmp_path: Path) -> None:
    for name in ("workspace", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "workspace" / "out").symlink_to("../outside")
    outcome = FileOperations(str(tmp_path / "workspace"), str(tmp_path)).put("out/a/b", b"x", None)
    assert isinstance(outcome, Failed)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("results", [1, [{}]])
async def test_an_odd_entry_of_the_transcript_is_a_violation(results: object) -> None:
    with pytest.raises(ContractViolation):
        await SegmentTranscript.encode([{"kind": "tool-results", "results": results}], Reader("turn_1"))


@pytest.mark.parametrize("event", [[1], 1, {"content": [1, {"type": "media", "reference": 1}]}, {"content": {"a": 1}}])
async def test_an_odd_message_of_the_transcript_has_no_files(event: Json) -> None:
    nobody: Any = None  # is asked
    files = MessageFiles(nobody, FileCache(), nobody, "ses_1", "turn_1")
    assert await files.known_to(Reader("turn_1"), [{"kind": "input", "turnId": "t0", "event": event}]) == Reader(
        "turn_1"
    )


@pytest.mark.parametrize("name", ["", "\ud800"])
async def test_a_listed_tool_without_a_usable_name_is_left_out(name: str) -> None:
    runtime = Runtime(script(text("Done.")))
    schema = {"type": "object"}
    servers = [{"name": "s", "tools": [{"name": name, "inputSchema": schema}]}]
    servers += [{"name": name, "tools": [{"name": "t", "inputSchema": schema}]}]
    assert await runtime.turn(mcp={"servers": servers}).run() == Reported("completed")


@pytest.mark.parametrize("id_", ["\ud800", "x" * 513, "", 1, None])
async def test_a_manifests_id_that_is_none_is_not_the_agents(id_: object) -> None:
    runtime = Runtime(script(text("Done.")))
    assert await runtime.turn(manifest={"id": id_, "instructions": "Be exact."}).run() == Reported("completed")


def test_a_failed_calls_code_that_is_no_text_can_be_recorded() -> None:
    fate = mcp_fate({"ok": False, "error": {"failure": {"code": "a\ud800", "message": "m"}}}, repeatable=False, asked=1)
    assert isinstance(fate, Known)
    encode(fate.value)
