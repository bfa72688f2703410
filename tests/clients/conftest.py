"""An egress proxy that authenticates and intercepts, an origin behind it, and commands in the host's own environment.

The environment is made by the host's code and is the only one that a client gets; the proxy is the embedded Runtime's. Every
name below ``.test`` is known to the proxy alone, so a client that does not use it reaches nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pod_host.dev.agent import DEFAULT_AGENT, EnvironmentSecret
from pod_host.dev.authority import Authority, TokenRefused
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database
from pod_host.dev.definitions import Definition
from pod_host.dev.egress import EgressProxy
from pod_host.dev.interception import Interception
from pod_host.dev.record import Record
from pod_host.host.credentials import Credentials
from pod_host.host.environment import Environments
from pod_host.host.relay import Relay
from pod_host.host.trust import TrustBundle
from pod_host.settings import Settings
from tests.clients.origin import SECRET, SECRET_HEADER, Origin

TOKEN = "ey.J%41+b/c=d@e%25f?g#h:i-_~"
"""Decoded once too often it is another; and each of its characters means something in a URL."""
SECONDS = 100.0  # the most that one command may take


class Tokens:
    """Who may use the proxy. ``shown``: every token that came."""

    def __init__(self) -> None:
        self.good = TOKEN
        self.shown: list[str] = []

    def verify_egress(self, token: str) -> object:
        self.shown.append(token)
        if token != self.good:
            raise TokenRefused("this is not the token")
        return token


@dataclass
class Ran:
    code: int
    stdout: str
    stderr: str


@dataclass
class Site:
    """The parts of one test. ``work``: an empty directory, where commands start."""

    root: Path
    origin: Origin
    tokens: Tokens
    proxy: EgressProxy
    settings: Settings
    credentials: SimpleNamespace
    trust: TrustBundle
    relay: Relay | None = None

    @property
    def relay_url(self) -> str:
        assert self.relay is not None
        return self.relay.url

    @property
    def work(self) -> Path:
        return self.root / "work"

    def environment(self, session: dict[str, str] | None = None, base: dict[str, str] | None = None) -> dict[str, str]:
        """What a command of a session gets."""
        environments = Environments(
            self.settings,
            {"PATH": os.environ["PATH"]} | (base or {}),
            cast(Credentials, self.credentials),
            self.trust,
            self.relay,
        )
        return dict(environments.of_call(session or {}, None))

    async def run(self, *command: str, **session: str) -> Ran:
        """A command with nothing but the environment of `environment`."""
        return await self.run_in(self.environment(session), *command)

    async def run_in(self, environment: dict[str, str], *command: str) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=self.work,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(SECONDS):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    async def good(self, *command: str, **session: str) -> str:
        """The output of a command that must succeed."""
        ran = await self.run(*command, **session)
        assert ran.code == 0, f"{command}: {ran}"
        return ran.stdout


def need(*names: str) -> str:
    """The first client's path; the test is skipped, by name, when one is not installed."""
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed here")
    return names[0]


@pytest.fixture
def root() -> Iterator[Path]:
    """Not pytest's own directory, which is closed to other users, as some clients become one."""
    path = Path(tempfile.mkdtemp(prefix="pod-host-test-", dir="/var/tmp"))
    path.chmod(0o755)
    for name in ("harness", "harness/home", "work", "repositories"):
        (path / name).mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def site(root: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await open_site(stack, root)


async def open_site(stack: AsyncExitStack, root: Path) -> Site:
    public = Authority(root / "public-keys", "public")  # stands for the CAs that everybody trusts
    (root / "public.pem").write_text(public.ca_certificate)
    origin = Origin(root / "repositories")
    await origin.start(_origin_tls(public))
    stack.push_async_callback(origin.stop)

    installation = Authority(root / "keys", "tenant")
    names = {
        f"{name}.test": ("127.0.0.1", origin.port) for name in ("git", "echo", "pypi", "npm", "go", "crates", "apt")
    }
    config = RuntimeConfig(
        state_dir=root / "state",
        agent=DEFAULT_AGENT,
        model=cast(Any, None),
        egress_names={**names, "plain.example": ("127.0.0.1", origin.port)},
    )
    db = Database(root / "state")
    stack.callback(db.close)
    record = Record(db)
    tokens = Tokens()
    definition = Definition(1, "h", {}, {}, ["*.test", "*.example"], None, False, None)
    secrets = {"ORIGIN_KEY": EnvironmentSecret(hosts=("*.test",), header=SECRET_HEADER, value=SECRET)}
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    interception = Interception(installation, secrets, {}, root / "public.pem")
    proxy = EgressProxy(config, listener, record, tokens, lambda: definition, interception)
    await proxy.start()
    stack.push_async_callback(proxy.stop)

    settings = Settings.read(
        {
            "NYLORUN_SANDBOX_ID": "sbx",
            "NYLORUN_POD_UID": "pod",
            "NYLORUN_SANDBOX_JOIN_FILE": str(root / "join"),
            "NYLORUN_HARNESS_URL": "http://127.0.0.1:9",
            "NYLORUN_GATES_URL": "http://127.0.0.1:9",
            "NYLORUN_EGRESS_PROXY": proxy.url,
            "POD_HOST_HARNESS_DIR": str(root / "harness"),
        }
    )
    trust = TrustBundle(settings.harness_dir, root / "public.pem")
    trust.accept(installation.ca_certificate)
    return Site(root, origin, tokens, proxy, settings, SimpleNamespace(egress_token=TOKEN), trust)


def _origin_tls(public: Authority) -> ssl.SSLContext:
    """Under the public CA, whatever name the client asks for."""
    leaves = Interception(public, {}, {})
    context = leaves.leaf("plain.example")

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = leaves.leaf(name or "plain.example")

    context.sni_callback = choose
    return context
