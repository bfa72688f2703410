"""A sandbox as the host would start it, for a moment: what holds, and what commands in it get to."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pod_host.errors import SandboxError
from pod_host.host.doctor.clients import CLIENTS, Client, verdict, version_in
from pod_host.host.doctor.findings import Finding
from pod_host.host.doctor.rehearsal import CA, TOKEN, USER, Seen, Stage
from pod_host.host.hardening import sandbox_config
from pod_host.host.relay import Relay
from pod_host.host.trust import TrustBundle
from pod_host.sandbox import Command, Completed, Sandbox, command_environment
from pod_host.settings import PROTECTIONS, Settings

_CLIENT_SECONDS: Final = 40.0
_AT_ONCE: Final = 3


async def look_into_sandbox(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Its directories are its own; the worker and the commands are as the host's would be, and end with it."""
    with _directory() as root:
        rehearsal = _Rehearsal(settings, environ, root)
        try:
            await rehearsal.sandbox.start()
        except SandboxError as fault:
            return [Finding("confinement", "worker", "failure", str(fault))]
        try:
            return [*await rehearsal.confinement(), *await rehearsal.clients()]
        finally:
            await rehearsal.sandbox.stop()


class _Rehearsal:
    def __init__(self, settings: Settings, environ: Mapping[str, str], root: Path) -> None:
        self._settings = settings
        self._environ = environ
        self._root = root
        for name in ("workspace", "home"):
            (root / name).mkdir()
            if os.geteuid() == 0:  # the worker is another user then
                os.chown(root / name, settings.sandbox_uid, -1)
        self.sandbox = Sandbox(
            replace(
                sandbox_config(settings),
                workspace=root / "workspace",
                home=root / "home",
                skills=root / "home" / "skills",  # beside them it would be closed, and with it the directory of us all
                spool=root / "spool",
                allowed=(root,),
                require=frozenset(),
            )
        )

    async def confinement(self) -> list[Finding]:
        told = self.sandbox.confinement
        findings = []
        for name in PROTECTIONS:
            if name in told.held:
                findings.append(Finding("confinement", name, "ok", "held by the kernel"))
            elif name in self._settings.required_confinement:
                says = "missing, and required by POD_HOST_CONFINEMENT: the host would not start"
                findings.append(Finding("confinement", name, "failure", says))
            else:
                findings.append(Finding("confinement", name, "warning", "not held"))
        held = f"cgroup, {', '.join(told.shares)}" if told.shares else "none: no controller is delegated"
        findings.append(Finding("confinement", "shares", "ok" if told.shares else "note", held))
        findings += [Finding("confinement", "exposed", "warning", line) for line in told.exposed]
        token = shlex.quote(str(self._settings.join_file))
        output = await self._bash("confinement", f"cat {token} >/dev/null 2>&1 && echo read; true", {})
        if "read" in output.split():
            says = f"a command can read {self._settings.join_file}"
            findings.append(Finding("confinement", "join token", "failure", says))
        else:
            findings.append(Finding("confinement", "join token", "ok", "a command cannot read it"))
        # A denied directory below /tmp closes /tmp itself, where most programs want to write.
        if "written" in await self._bash("confinement", 'made=$(mktemp -p /tmp) && rm "$made" && echo written', {}):
            findings.append(Finding("confinement", "/tmp", "ok", "commands can write there"))
        else:
            findings.append(
                Finding("confinement", "/tmp", "warning", "commands cannot write there: many programs fail")
            )
        return findings

    async def clients(self) -> list[Finding]:
        async with _stage(self._settings.egress == "relay") as (stage, proxy):
            trust = TrustBundle(self._root / "trust")
            trust.accept(CA.read_text())
            environment = command_environment(
                base=self._environ,
                home=self._root / "home",
                session={},
                proxy=proxy,
                trust_bundle=trust.path,
                client_files=trust.client_files,
                traceparent=None,
            )
            places = asyncio.Semaphore(_AT_ONCE)

            async def one(client: Client) -> Finding:
                async with places:
                    return await self._client(client, stage, environment)

            return await asyncio.gather(*(one(client) for client in CLIENTS))

    async def _client(self, client: Client, stage: Stage, environment: Mapping[str, str]) -> Finding:
        label = client.name.replace(" ", "-")
        relay = self._settings.egress == "relay"
        present = await self._bash(label, client.present, environment)
        version = version_in(present) if present else None
        seen = Seen()
        if version is not None and (relay or not client.relay):
            host = f"{label}.doctor.invalid"
            script = f"mkdir {label} && cd {label} && export HOST={host}\n{client.attempt}"
            await self._bash(label, script, environment)
            seen = stage.seen.get(label, seen)
        return verdict(client, version, seen, relay)

    async def _bash(self, session: str, script: str, environment: Mapping[str, str]) -> str:
        """What it prints; nothing when it fails or takes too long."""
        request = Command(session, script, str(self._root / "workspace"), dict(environment), _CLIENT_SECONDS)
        outcome = await self.sandbox.ask(request)
        if not isinstance(outcome, Completed) or outcome.output["exitCode"] != 0:
            return ""
        return str(outcome.output["stdout"])


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pod-host-doctor-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def _stage(by_relay: bool) -> AsyncIterator[tuple[Stage, str]]:
    """The stage, and the URL that commands are told."""
    stage = Stage()
    await stage.open()
    host, port = stage.address
    relay = Relay(f"http://{host}:{port}", USER) if by_relay else None
    try:
        if relay is None:
            yield stage, f"http://{USER}:{quote(TOKEN, safe='')}@{host}:{port}"
        else:
            await relay.start()
            relay.authorize(TOKEN)
            yield stage, relay.url
    finally:
        if relay is not None:
            await relay.stop()
        await stage.close()
