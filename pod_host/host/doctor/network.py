"""What can be reached, and what must not be. Nothing here joins: a join would end the host that runs."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from pod_host.client import runtime_tls
from pod_host.errors import ConfigurationError
from pod_host.host.doctor.findings import Finding
from pod_host.host.network_gate import TIMES, connects
from pod_host.settings import Settings

_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 32 * 1024
_SKEW_SECONDS: Final = 60.0  # more is told: certificates and dates in logs go by the wall clock
_SKEW_MOST_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class Answer:
    """``skew``: seconds that our wall clock is ahead of the other's; None when it told no time."""

    status: int
    skew: float | None


async def look_at_network(settings: Settings, at_fault: frozenset[str]) -> list[Finding]:
    findings: list[Finding] = []
    tls: ssl.SSLContext | None = None
    try:
        tls = runtime_tls(settings.runtime_ca) if settings.speaks_tls or settings.runtime_ca else None
    except ConfigurationError as fault:
        findings += [Finding("network", "POD_HOST_RUNTIME_CA", "failure", line) for line in fault.faults]
    skews: list[float] = []
    for variable, name, url in (
        ("NYLORUN_HARNESS_URL", "Harness API", settings.harness_url),
        ("NYLORUN_GATES_URL", "gates", settings.gates_url),
    ):
        if variable in at_fault:
            continue
        try:
            answer = await _ask(url, f"GET {urlsplit(url).path or '/'} HTTP/1.1", tls)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as fault:
            why = str(fault) or type(fault).__name__
            findings.append(Finding("network", name, "failure", f"{url} does not answer: {why}"))
        else:
            findings.append(Finding("network", name, "ok", f"{url} answers (status {answer.status})"))
            skews += [answer.skew] if answer.skew is not None else []
    if settings.egress_proxy is not None:
        findings.append(await _look_at_egress(settings.egress_proxy))
    if "NYLORUN_HARNESS_URL" not in at_fault:
        findings += await _look_at_gate(settings)
    findings.append(_look_at_clock(skews))
    return findings


async def _look_at_gate(settings: Settings) -> list[Finding]:
    """As the host does before all else, but once."""
    if not await connects(settings.harness_address, TIMES.attempt):
        return [Finding("network", "policy", "warning", "cannot be told while the Runtime cannot be reached")]
    findings = []
    for probe in settings.probes:
        if not await connects(probe, TIMES.attempt):
            findings.append(Finding("network", "policy", "ok", f"{probe} cannot be reached, as it must be"))
        elif settings.network_gate:
            says = f"{probe} can be reached: the NetworkPolicy is not in force, and the host would exit 75"
            findings.append(Finding("network", "policy", "failure", says))
        else:
            findings.append(Finding("network", "policy", "warning", f"{probe} can be reached; the gate is off"))
    return findings


async def _look_at_egress(url: str) -> Finding:
    """Without a token it must refuse: 407."""
    try:
        answer = await _ask(url, "CONNECT doctor.invalid:443 HTTP/1.1", ssl.create_default_context())
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as fault:
        why = str(fault) or type(fault).__name__
        return Finding("network", "egress proxy", "failure", f"{url} does not answer: {why}")
    if answer.status == 407:
        return Finding("network", "egress proxy", "ok", f"{url} answers, and asks for a token")
    says = f"{url} answers {answer.status} where it should ask for a token (407)"
    return Finding("network", "egress proxy", "warning", says)


def _look_at_clock(skews: list[float]) -> Finding:
    if time.time() < 1_700_000_000:
        return Finding("clock", "wall clock", "failure", "it stands before 2023: no certificate will be valid")
    if not skews:
        return Finding("clock", "wall clock", "note", "nothing told another time to compare it with")
    skew = max(skews, key=abs)
    says = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the Runtime's"
    if abs(skew) > _SKEW_MOST_SECONDS:
        return Finding("clock", "wall clock", "failure", f"{says}: certificates may not be valid")
    return Finding("clock", "wall clock", "warning" if abs(skew) > _SKEW_SECONDS else "ok", says)


async def _ask(url: str, request: str, tls: ssl.SSLContext | None) -> Answer:
    """The head of an answer. Raises OSError (a TimeoutError too), ValueError when it is no HTTP."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls if secure else None, limit=_HEAD_BYTES)
        try:
            writer.write(f"{request}\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        finally:
            writer.transport.abort()
    protocol, _, rest = head[0].partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError("what answers speaks no HTTP/1.1")
    dates = [line.partition(":")[2] for line in head if line.lower().startswith("date:")]
    return Answer(int(rest[:3]), time.time() - parsedate_to_datetime(dates[0].strip()).timestamp() if dates else None)
