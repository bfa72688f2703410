"""What the egress proxy does for a host that is bound to a secret: it is the host to the client, under a certificate of the
installation's CA, and the client to the host; every request leaves with the secret in its header.

HTTP/1.1 alone on both sides, and no upgrades.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiohttp
import certifi
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from multidict import CIMultiDict
from yarl import URL

from pod_host.dev.agent import EnvironmentSecret
from pod_host.dev.authority import Authority

_LEAF_DAYS: Final = 7
_PIECE_BYTES: Final = 64 * 1024
# Of one connection, not of the message (RFC 9110, section 7.6.1). An upgrade goes with them.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate", "te", "trailer",
        "transfer-encoding", "upgrade", "http2-settings", "expect",
    }
)  # fmt: skip


class SecretMissing(Exception):
    """The secret has no value: the variable that should hold it is not set where the Runtime runs."""


class Interception:
    """Leaves of the CA by host, and who is bound to which secret. ``upstream_ca``: roots beside the public ones."""

    def __init__(
        self,
        authority: Authority,
        secrets: Mapping[str, EnvironmentSecret],
        environ: Mapping[str, str],
        upstream_ca: Path | None = None,
    ) -> None:
        self._authority = authority
        self._secrets = secrets
        self._environ = environ
        self._upstream = ssl.create_default_context(cafile=certifi.where())
        if upstream_ca is not None:
            self._upstream.load_verify_locations(cafile=upstream_ca)
        self._upstream.set_alpn_protocols(["http/1.1"])
        self._key = ec.generate_private_key(ec.SECP256R1())  # of all leaves; it never leaves this process
        self._leaves: dict[str, tuple[ssl.SSLContext, datetime]] = {}

    def header_of(self, host: str) -> tuple[str, str] | None:
        """The header that a secret puts into every request to ``host``; None: no secret is bound to it. Raises
        SecretMissing."""
        for name, secret in self._secrets.items():
            if secret.binds(host):
                value = secret.value if secret.value is not None else self._environ.get(secret.from_env or name, "")
                if not value:
                    raise SecretMissing(
                        f"the secret {name} of {host} has no value: {secret.from_env or name} is not set"
                    )
                return secret.header, secret.prefix + value
        return None

    def leaf(self, host: str) -> ssl.SSLContext:
        """The server's side of TLS, as ``host``."""
        held = self._leaves.get(host)
        if held is None or held[1] < datetime.now(UTC):
            held = self._leaves[host] = (self._make_leaf(host), datetime.now(UTC) + timedelta(days=_LEAF_DAYS / 2))
        return held[0]

    def _make_leaf(self, host: str) -> ssl.SSLContext:
        authority = x509.load_pem_x509_certificate(self._authority.ca_certificate.encode())
        now = datetime.now(UTC)
        public = self._key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
            .issuer_name(authority.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=_LEAF_DAYS))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority.ca_key.public_key()), critical=False
            )
            .sign(self._authority.ca_key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with tempfile.NamedTemporaryFile() as file:  # ssl takes a chain from a file alone; this one is ours to read
            file.write(key + certificate.public_bytes(serialization.Encoding.PEM))
            file.flush()
            context.load_cert_chain(file.name)
        return context

    @asynccontextmanager
    async def server(
        self, host: str, port: int, addresses: Sequence[tuple[str, int]], header: tuple[str, str], idle: float
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection whose other end is an HTTP server that passes every request on to ``host``."""
        resolver = _Known(addresses)
        connector = aiohttp.TCPConnector(ssl=self._upstream, resolver=resolver, use_dns_cache=False)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=idle)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            origin = f"https://{host}" if port == 443 else f"https://{host}:{port}"
            handler = _Forward(session, origin, header)
            server = web.Server(handler, access_log=None, auto_decompress=False, keepalive_timeout=idle)
            inner, outer = socket.socketpair()
            loop = asyncio.get_running_loop()
            try:
                await loop.connect_accepted_socket(server, inner)
                reader, writer = await asyncio.open_connection(sock=outer)
            except BaseException:
                inner.close()
                outer.close()
                raise
            try:
                yield reader, writer
            finally:
                writer.close()
                await server.shutdown(timeout=0)


class _Known(AbstractResolver):
    """Answers with what was looked up and allowed before: the name may mean another address a moment later."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=known,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address, known in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


class _Forward:
    """Each request of one client, to one host, under the secret's header."""

    def __init__(self, session: aiohttp.ClientSession, origin: str, header: tuple[str, str]) -> None:
        self._session = session
        self._origin = origin
        self._header = header

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path
        if not path.startswith("/"):  # an absolute form names a host of its own
            return _told(400, f"{path[:200]} is no path")
        headers = _passed_on(request.headers)
        headers.popall(self._header[0], None)
        headers[self._header[0]] = self._header[1]
        body = request.content.iter_chunked(_PIECE_BYTES) if request.can_read_body else None
        try:
            # Closed before the answer is passed on whole, an answer is cut here too: aiohttp then ends the connection.
            async with self._session.request(
                request.method,
                URL(self._origin + path, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            ) as answer:
                return await _pass_on(request, answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            if isinstance(fault, _Cut):
                raise
            return _told(502, f"{self._origin} cannot be asked: {type(fault).__name__}")


class _Cut(ConnectionError):
    """The host's answer ended in its middle, and a part of it has gone to the client."""


async def _pass_on(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers))
    if "Content-Length" in answer.headers:
        response.content_length = int(answer.headers["Content-Length"])
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_chunked(_PIECE_BYTES):
            await response.write(piece)
        await response.write_eof()
    except aiohttp.ClientError as fault:
        if request.transport is not None:
            request.transport.abort()
        raise _Cut(str(fault)) from fault
    return response


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named:
            kept.add(name, value)
    return kept


def _told(status: int, reason: str) -> web.Response:
    return web.Response(status=status, text=f"egress-gate: {reason}\n")
