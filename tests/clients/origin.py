"""A server that clients want something of: every name below ``.test`` is it, by what its first part says.

It answers only to requests that carry the secret, which no client has: the proxy puts it in.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import ssl
import tarfile
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

SECRET_HEADER = "X-Origin-Key"
SECRET = "the-origins-own-secret"
BIG = bytes(range(256)) * 8192  # 2 MiB

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Origin:
    """``repositories``: where ``git.test`` finds its bare repositories. ``seen``: (host, method, path) of each request."""

    def __init__(self, repositories: Path) -> None:
        self._repositories = repositories
        self.seen: list[tuple[str, str, str]] = []
        self.wants_secret = True
        self.port = 0
        self._handlers: dict[str, Handler] = {
            "git": self._git,
            "echo": self._echo,
            "plain": self._echo,
            "pypi": _files(_python_index()),
            "npm": _files(_npm_registry()),
            "go": _files(_go_proxy()),
            "crates": _files(_crates()),
            "apt": _files(_apt_repository()),
        }
        self._runner = web.ServerRunner(web.Server(self._serve, access_log=None), shutdown_timeout=1.0)

    async def start(self, tls: ssl.SSLContext | None) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        host = request.host.partition(":")[0]
        self.seen.append((host, request.method, request.path))
        if self.wants_secret and request.headers.getall(SECRET_HEADER, []) != [SECRET]:
            return web.Response(status=403, text="the secret is missing\n")
        return await self._handlers[host.partition(".")[0]](request)

    async def _echo(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/big":
            return web.Response(body=BIG)
        if request.path == "/slow-chunks":
            response = web.StreamResponse()
            response.enable_chunked_encoding()
            await response.prepare(request)
            for number in range(3):
                await response.write(f"{number}\n".encode())
            await response.write_eof()
            return response
        body = await request.content.read()
        return web.json_response(
            {
                "method": request.method,
                "path": request.path_qs,
                "sha256": hashlib.sha256(body).hexdigest(),
                "length": len(body),
                "headers": sorted(name.lower() for name in request.headers),
            }
        )

    async def _git(self, request: web.BaseRequest) -> web.StreamResponse:
        """git's own server, as CGI (RFC 3875)."""
        body = await request.content.read()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self._repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_USER": "somebody",  # whoever is known may push
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        }
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, headers=headers, body=content)


def _files(files: dict[str, bytes]) -> Handler:
    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.replace("/./", "/")
        if path not in files:
            return web.Response(status=404)
        kind = "text/html" if path.endswith("/") else "application/octet-stream"
        return web.Response(body=files[path], content_type=kind)

    return serve


def _python_index() -> dict[str, bytes]:
    """A simple index with one wheel, ``demo-1.0``."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("demo.py", "ANSWER = 42\n")
        archive.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        archive.writestr(
            "demo-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("demo-1.0.dist-info/RECORD", "demo.py,,\n")
    name = "demo-1.0-py3-none-any.whl"
    link = f'<!DOCTYPE html><a href="/files/{name}">{name}</a>'
    return {"/simple/demo/": link.encode(), f"/files/{name}": wheel.getvalue()}


def _npm_registry() -> dict[str, bytes]:
    archive = _tar(
        {"package/package.json": b'{"name":"demo","version":"1.0.0"}', "package/index.js": b"module.exports = 42\n"}
    )
    packument = {
        "name": "demo",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {
            "1.0.0": {
                "name": "demo",
                "version": "1.0.0",
                "dist": {
                    "tarball": "https://npm.test/demo/-/demo-1.0.0.tgz",
                    "shasum": hashlib.sha1(archive).hexdigest(),
                },
            }
        },
    }
    return {"/demo": json.dumps(packument).encode(), "/demo/-/demo-1.0.0.tgz": archive}


def _go_proxy() -> dict[str, bytes]:
    at = "/go.test/demo/@v"
    module = b"module go.test/demo\n\ngo 1.19\n"
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("go.test/demo@v1.0.0/go.mod", module)
        archive.writestr("go.test/demo@v1.0.0/demo.go", "package demo\n\nconst Answer = 42\n")
    return {
        f"{at}/list": b"v1.0.0\n",
        f"{at}/v1.0.0.info": b'{"Version":"v1.0.0"}',
        f"{at}/v1.0.0.mod": module,
        f"{at}/v1.0.0.zip": source.getvalue(),
    }


def _crates() -> dict[str, bytes]:
    """A sparse registry with one crate, ``demo``."""
    crate = _tar(
        {
            "demo-1.0.0/Cargo.toml": b'[package]\nname = "demo"\nversion = "1.0.0"\n',
            "demo-1.0.0/src/lib.rs": b"pub const ANSWER: u8 = 42;\n",
        }
    )
    entry = {
        "name": "demo",
        "vers": "1.0.0",
        "deps": [],
        "cksum": hashlib.sha256(crate).hexdigest(),
        "features": {},
        "yanked": False,
    }
    return {
        "/index/config.json": json.dumps({"dl": "https://crates.test/dl/{crate}-{version}.crate"}).encode(),
        "/index/de/mo/demo": json.dumps(entry).encode() + b"\n",
        "/dl/demo-1.0.0.crate": crate,
    }


def _apt_repository() -> dict[str, bytes]:
    """A flat repository with one package, ``demo``."""
    control = b"Package: demo\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <n@test>\nDescription: a demo\n"
    package = _ar(
        {
            "debian-binary": b"2.0\n",
            "control.tar.gz": _tar({"./control": control}),
            "data.tar.gz": _tar({"./usr/share/demo": b"42\n"}),
        }
    )
    listing = (
        control
        + (
            f"Filename: ./demo_1.0_all.deb\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n"
        ).encode()
    )
    return {"/debian/Packages": listing, "/debian/demo_1.0_all.deb": package}


def _tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _ar(files: dict[str, bytes]) -> bytes:
    made = b"!<arch>\n"
    for name, content in files.items():
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        made += content + b"\n" * (len(content) % 2)
    return made
