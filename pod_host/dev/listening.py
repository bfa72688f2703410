"""What the HTTP listeners share: a port that is free or a clear error, Host headers, bearers, answers."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import encode
from pod_host.dev.database import Database
from pod_host.errors import ConfigurationError

_BEARER: Final = re.compile(r"^bearer\s+(\S+)\s*\Z", re.IGNORECASE)


def listen(db: Database, name: str, host: str, port: int) -> socket.socket:
    """A listening socket. Port 0: the one of the last time on this state directory when it is free, else any. Raises
    ConfigurationError naming the port."""
    remembered = db.get(f"port.{name}") if port == 0 else None
    if remembered is not None:
        try:
            return _bind(host, remembered)
        except OSError:
            remembered = None  # somebody else has it now; another does as well
    try:
        made = _bind(host, port)
    except OSError as fault:
        why = "is taken" if fault.errno == errno.EADDRINUSE else f"cannot be opened: {fault.strerror}"
        raise ConfigurationError([f"{name} port {port} on {host} {why}"]) from None
    db.set(f"port.{name}", made.getsockname()[1])
    return made


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def host_names(listener: socket.socket, more: tuple[str, ...] = ()) -> frozenset[str]:
    """The ``Host`` headers that a listener answers to: exact, lower case, with the port."""
    host, port = listener.getsockname()[:2]
    own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return frozenset({own, f"localhost:{port}", f"127.0.0.1:{port}", *(name.lower() for name in more)})


def bearer(request: web.BaseRequest) -> str | None:
    found = _BEARER.match(request.headers.get("Authorization", ""))
    return found.group(1) if found else None


def json_answer(body: Json, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=encode(body), status=status, content_type="application/json", headers=headers)


def error_answer(status: int, code: str, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body: JsonObject = {"error": {"code": code, "message": text}}
    return json_answer(body, status, headers)


async def read_body(request: web.BaseRequest, most: int) -> bytes | None:
    """The whole body, or None when it passes ``most`` bytes."""
    if (request.content_length or 0) > most:
        return None
    body = bytearray()
    async for piece in request.content.iter_chunked(64 * 1024):
        body += piece
        if len(body) > most:
            return None
    return bytes(body)


async def serve(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], at: socket.socket
) -> web.ServerRunner:
    """One handler for every request of a listener; ends with the runner's ``cleanup``."""
    runner = web.ServerRunner(web.Server(handler, access_log=None), shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, at).start()
    return runner
