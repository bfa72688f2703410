"""Spans of turns, steps, model calls, tool calls and compactions, for the operator's own collector (Harness API v5,
section 3: the Runtime never ingests them). They hold ids, counts and codes: never a prompt, an argument, an output, a
file's name or an error's text.

    with span("tool", effect_id=…) as marks:
        …
        marks.set(error_type=…)

Off, which is the default, a span costs one look at a context variable. On, spans are handed to a thread that sends them;
when the collector is slow or gone they are dropped, and no turn waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal, Protocol

from pod_host import __version__, limits
from pod_host.contract.turn_start import TurnStart
from pod_host.errors import PodHostError
from pod_host.turn.endings import Stopped, Waits
from pod_host.turn.log import tell

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

SpanName = Literal["turn", "step", "model", "tool", "compaction"]
Fact = str | int | bool | None

_CODE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_NAMES: Final = {
    "agent_id": "nylorun.agent.id",
    "effect_id": "nylorun.effect.id",
    "error_type": "error.type",
    "finish_reason": "gen_ai.response.finish_reason",
    "input_tokens": "gen_ai.usage.input_tokens",
    "model": "gen_ai.request.model",
    "output_tokens": "gen_ai.usage.output_tokens",
    "run_id": "nylorun.run.id",
    "segment": "nylorun.turn.segment",
    "session_id": "nylorun.session.id",
    "turn_id": "nylorun.turn.id",
}
"""The wire names of facts; the others are ``pod_host.<name>``."""


class Marks(Protocol):
    """A span that is open."""

    def set(self, **facts: Fact) -> None:
        """Note facts of it; a None is left out."""
        ...


class _NoMarks:
    def set(self, **facts: Fact) -> None:
        pass


_NO_MARKS: Final = _NoMarks()
_NO_SPAN: Final = nullcontext(_NO_MARKS)
_tracer: ContextVar[Tracer | None] = ContextVar("pod_host_tracer", default=None)


def span(name: SpanName, **facts: Fact) -> AbstractContextManager[Marks]:
    """A span within the turn that runs here; an error that leaves it marks it as failed."""
    tracer = _tracer.get()
    return _NO_SPAN if tracer is None else _open(tracer, name, facts, None)


def code_of(text: str) -> str:
    """A peer's error code or another of its words of a fixed set, where it looks like one: else it could be content."""
    return text if _CODE.fullmatch(text) else "_OTHER"


class Tracing:
    """Where a host's spans go. Without a provider: nowhere."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._source = provider.get_tracer("pod_host", __version__) if provider else None

    @classmethod
    def to(cls, endpoint: str | None) -> Tracing:
        """To the OTLP/HTTP collector at ``endpoint`` (a URL, without ``/v1/traces``), or off. Without the extra ``otel``:
        off, with a warning."""
        if endpoint is None:
            return cls()
        try:
            return cls(_provider(endpoint))
        except ModuleNotFoundError as missing:
            tell(
                logging.WARNING,
                "tracing.off",
                reason="OTEL_EXPORTER_OTLP_ENDPOINT is set, but spans need the extra: pip install 'pod-host[otel]'",
                missing=missing.name,
            )
            return cls()

    @contextmanager
    def turn(self, start: TurnStart, run_id: str) -> Iterator[Marks]:
        """The span of a segment; those within it are its children. Its parent is the Runtime's, ``start.trace``."""
        if self._source is None:
            yield _NO_MARKS
            return
        token = _tracer.set(self._source)
        try:
            checkpoint = start.checkpoint
            facts: dict[str, Fact] = {
                "session_id": checkpoint.session_id,
                "turn_id": checkpoint.turn_id,
                "segment": checkpoint.segment,
                "run_id": run_id,
                "agent_id": start.agent.id if start.agent else None,
            }
            with _open(self._source, "turn", facts, _parent(start)) as marks:
                yield marks
        finally:
            _tracer.reset(token)

    async def close(self) -> None:
        """Send what is left, for a moment; a collector that does not answer is left behind."""
        provider = self._provider
        if provider is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            provider.shutdown()
            with suppress(RuntimeError):  # the loop is gone: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=end, name="last spans", daemon=True).start()  # never joined at the process's end
        try:
            await asyncio.wait_for(done.wait(), limits.TRACES_CLOSE_SECONDS)
        except TimeoutError:
            tell(logging.WARNING, "tracing.unsent", reason="the collector did not take the last spans in time")


OFF: Final = Tracing()


def _provider(endpoint: str) -> TracerProvider:
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    session = requests.Session()
    session.trust_env = False  # no proxy of the environment: those are for commands
    # What the SDK's own variables name besides (service name, headers, certificate, sampler) it reads itself.
    resource = Resource.create({"service.name": "pod-host", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", session=session)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _parent(start: TurnStart) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": start.trace.traceparent} if start.trace else {}
    if start.trace and start.trace.tracestate:
        carrier["tracestate"] = start.trace.tracestate
    return TraceContextTextMapPropagator().extract(carrier, Context())


class _SpanMarks:
    def __init__(self, of: Span) -> None:
        self._span = of

    def set(self, **facts: Fact) -> None:
        for name, value in facts.items():
            if value is not None:
                self._span.set_attribute(_NAMES.get(name, f"pod_host.{name}"), value)
        if facts.get("error_type") is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)


@contextmanager
def _open(tracer: Tracer, name: str, facts: dict[str, Fact], parent: Context | None) -> Iterator[Marks]:
    with tracer.start_as_current_span(name, parent, record_exception=False, set_status_on_exception=False) as opened:
        marks = _SpanMarks(opened)
        marks.set(**facts)
        try:
            yield marks
        except (Stopped, Waits, asyncio.CancelledError) as end:  # no errors: the turn's way to stop or to wait
            marks.set(stopped=end.reason if isinstance(end, Stopped) else type(end).__name__)
            raise
        except Exception as fault:
            marks.set(error_type=code_of(fault.code) if isinstance(fault, PodHostError) else type(fault).__name__)
            raise
