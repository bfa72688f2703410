"""Spans to the operator's collector: what they hold, whose children they are, and that no turn depends on them."""

from __future__ import annotations

import asyncio
import builtins
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.turn import Released, Reported, Tracing
from pod_host.turn.tracing import _NO_SPAN, span
from tests.turn.double import SESSION, TURN, Runtime, calls, script, text
from tests.turn.sandbox_double import Sandbox
from tests.turn.test_agent_tools import helped
from tests.turn.test_compaction import MODEL, pages, spending

TRACE, PARENT = "a" * 32, "b" * 16
ANSWER = {**text("The secret answer."), "usage": {"inputTokens": 11, "outputTokens": 7}}


class Collector:
    """An OTLP/HTTP collector on loopback."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces":
                    collector.bodies.append(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            it
            for request in requests
            for of in request.resource_spans
            for scope in of.scope_spans
            for it in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Json]:
        return facts(ExportTraceServiceRequest.FromString(self.bodies[0]).resource_spans[0].resource)


def facts(of: Any) -> dict[str, Json]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in of.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


async def traced(collector: Collector, runtime: Runtime, sandbox: Sandbox | None = None, **members: Any) -> list[Span]:
    """The spans of a turn, in the order in which they began."""
    tracing = Tracing.to(collector.endpoint)
    members = {"trace": {"traceparent": f"00-{TRACE}-{PARENT}-01"}, **members}
    await runtime.turn(sandbox, tracing=tracing, **members).run()
    await tracing.close()
    return sorted(collector.spans, key=lambda it: it.start_time_unix_nano)


def tree(spans: list[Span]) -> list[tuple[str, str]]:
    names = {it.span_id: it.name for it in spans}
    return [(it.name, names.get(it.parent_span_id, it.parent_span_id.hex())) for it in spans]


async def test_a_turn_is_a_tree_of_spans_below_the_runtimes(collector: Collector) -> None:
    runtime = Runtime(script(calls(("bash", {"command": "ls"})), ANSWER))
    spans = await traced(collector, runtime, Sandbox(), model=MODEL)
    assert tree(spans) == [
        ("turn", PARENT),
        ("step", "turn"),
        ("model", "step"),
        ("tool", "step"),
        ("step", "turn"),
        ("model", "step"),
    ]
    assert {it.trace_id.hex() for it in spans} == {TRACE}
    assert collector.resource["service.name"] == "pod-host"
    turn, step, model, tool, _, last = (facts(it) for it in spans)
    assert turn == {
        "nylorun.session.id": SESSION,
        "nylorun.turn.id": TURN,
        "nylorun.turn.segment": 0,
        "nylorun.run.id": "run_1",
        "nylorun.agent.id": "coder",
        "pod_host.status": "completed",
    }
    assert step == {"pod_host.step": 1}
    assert model["nylorun.effect.id"] == f"{TURN}:0:model:step-1"
    assert model["gen_ai.request.model"] == "m"
    assert tool == {
        "nylorun.effect.id": f"{TURN}:0:tool:step-1/0",
        "pod_host.tool": "bash",
        "pod_host.target": "sandbox",
    }
    assert (last["gen_ai.usage.input_tokens"], last["gen_ai.usage.output_tokens"]) == (11, 7)
    assert last["gen_ai.response.finish_reason"] == "stop"
    assert not any(it.status.code == Status.STATUS_CODE_ERROR for it in spans)


async def test_an_agent_used_as_a_tool_has_its_steps_within_its_call(collector: Collector) -> None:
    runtime = helped(calls(("bash", {"command": "ls"})), ANSWER)
    spans = await traced(collector, runtime, Sandbox())
    assert tree(spans)[:8] == [
        ("turn", PARENT),
        ("step", "turn"),
        ("model", "step"),
        ("tool", "step"),
        ("step", "tool"),
        ("model", "step"),
        ("tool", "step"),
        ("step", "tool"),
    ]
    assert facts(spans[3]) == {
        "nylorun.effect.id": f"{TURN}:0:tool:step-1/0",
        "pod_host.tool": "helper",
        "pod_host.target": "harness",
    }


async def test_a_compaction_holds_the_calls_that_wrote_it(collector: Collector) -> None:
    spans = await traced(collector, Runtime(spending(5)), pages(), model=MODEL)
    assert ("compaction", "step") in tree(spans)
    assert ("model", "compaction") in tree(spans)
    [compaction] = [facts(it) for it in spans if it.name == "compaction"]
    assert (compaction["pod_host.trigger"], compaction["pod_host.calls"]) == ("threshold", 1)
    [summary] = [facts(it) for it in spans if facts(it).get("pod_host.purpose") == "summary"]
    assert summary["nylorun.effect.id"].endswith("/summary-threshold-1")


async def test_nothing_of_what_was_said_or_done_is_in_a_span(collector: Collector) -> None:
    """Not of prompts, arguments, outputs, files' and unknown tools' names, nor of an error's text."""

    def broken(tool: str, arguments: JsonObject) -> Any:
        raise ZeroDivisionError("the secret reason")

    asked = calls(("read", {"path": "/secret/path"}), ("secret_tool", {"x": "secret"}))
    failed = {"kind": "failed", "code": "secret words", "message": "the secret fault", "retryable": False}
    for model, sandbox in (
        (script(asked, ANSWER), Sandbox()),
        (script(asked, failed), Sandbox()),
        (script(asked), Sandbox(work=broken)),
    ):
        content = [{"type": "text", "text": "a secret"}]
        await traced(collector, Runtime(model), sandbox, message={"content": content})
    assert collector.bodies
    assert b"secret" not in b"".join(collector.bodies)


async def test_what_fails_is_marked_with_its_code(collector: Collector) -> None:
    failed = {"kind": "failed", "code": "auth", "message": "no key", "retryable": False}
    spans = await traced(collector, Runtime(lambda call, effect_id: failed))
    marked = [(it.name, facts(it).get("error.type"), it.status.code, it.status.message) for it in spans]
    error = Status.STATUS_CODE_ERROR
    assert marked == [
        ("turn", "model.auth", error, ""),
        ("step", "model.auth", error, ""),
        ("model", "auth", error, ""),
    ]
    assert not any(it.events for it in spans)


async def test_a_turn_that_is_stopped_is_no_error(collector: Collector) -> None:
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    tracing = Tracing.to(collector.endpoint)
    turn = Runtime(script(), at_gate=lambda call: hang()).turn(tracing=tracing)
    running = asyncio.create_task(turn.run())
    await asked.wait()
    turn.stop("shutdown")
    assert await running == Released("shutdown")
    await tracing.close()
    named = {it.name: facts(it) for it in collector.spans}
    assert named["model"]["pod_host.stopped"] == "shutdown"
    assert named["turn"]["pod_host.released"] == "shutdown"
    assert not any("error.type" in it for it in named.values())


async def test_a_replayed_effect_has_no_span(collector: Collector) -> None:
    runtime = Runtime(script(calls(("bash", {"command": "ls"})), text("Done.")))
    sandbox = Sandbox(held={"bash"})
    running = asyncio.create_task(runtime.turn(sandbox).run())
    await sandbox.waiting.wait()
    running.cancel()
    await asyncio.wait({running})
    spans = await traced(collector, runtime, Sandbox())
    assert [it.name for it in spans] == ["turn", "step", "step", "model"]


async def test_turns_side_by_side_do_not_mix(collector: Collector) -> None:
    tracing = Tracing.to(collector.endpoint)
    traces = [f"{number:032x}" for number in range(1, 6)]
    runtimes = [Runtime(script(calls(("bash", {"command": "ls"})), text("Done."))) for _ in traces]
    await asyncio.gather(
        *(
            runtime.turn(Sandbox(), tracing=tracing, trace={"traceparent": f"00-{trace}-{PARENT}-01"}).run()
            for runtime, trace in zip(runtimes, traces, strict=True)
        )
    )
    await tracing.close()
    assert {trace: sum(it.trace_id.hex() == trace for it in collector.spans) for trace in traces} == dict.fromkeys(
        traces, 6
    )


async def test_a_trace_that_is_not_sampled_is_not_sent(collector: Collector) -> None:
    assert await traced(collector, Runtime(script(ANSWER)), trace={"traceparent": f"00-{TRACE}-{PARENT}-00"}) == []


@pytest.mark.parametrize("trace", [None, {"traceparent": "nonsense"}])
async def test_a_turn_without_a_usable_trace_begins_one(collector: Collector, trace: Json) -> None:
    spans = await traced(collector, Runtime(script(ANSWER)), trace=trace)
    assert tree(spans)[0] == ("turn", "")


async def test_a_collector_that_never_answers_holds_up_neither_a_turn_nor_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "TRACES_CLOSE_SECONDS", 0.05)
    with silent_listener() as port:
        tracing = Tracing.to(f"http://127.0.0.1:{port}")
        assert await Runtime(script(ANSWER)).turn(tracing=tracing).run() == Reported("completed")
        with caplog.at_level(logging.WARNING):
            await tracing.close()
    assert "tracing.unsent" in caplog.text


@contextmanager
def silent_listener() -> Iterator[int]:
    """It takes connections and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


async def test_off_there_is_nothing() -> None:
    tracing = Tracing.to(None)
    with tracing.turn(Runtime(script()).start(), "run_1"):
        assert span("step", step=1) is _NO_SPAN
    await tracing.close()


async def test_without_the_extra_the_host_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with caplog.at_level(logging.WARNING):
        tracing = Tracing.to("http://127.0.0.1:4318")
        assert await Runtime(script(ANSWER)).turn(tracing=tracing).run() == Reported("completed")
    [told] = [record for record in caplog.records if record.message == "tracing.off"]
    assert "pod-host[otel]" in told.fields["reason"]  # type: ignore[attr-defined]
