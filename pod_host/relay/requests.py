"""HTTP/1.1 heads as the relay reads and writes them (RFC 9112). No I/O.

Bytes throughout: what is not looked at goes on as it came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~-]+)(?::(\d{1,5}))?")
_VERSION: Final = re.compile(rb"HTTP/1\.[01]")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: (.*))?", re.DOTALL)
# Of one connection, not of the message (RFC 9110, section 7.6.1), and what is for a proxy alone.
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"upgrade"}
)

Headers = list[tuple[bytes, bytes]]


class BadRequest(Exception):
    """What is no request to a proxy. ``status``: of the answer."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Target:
    """``host`` as in a URL: an IPv6 address in its brackets."""

    host: bytes
    port: int

    def __bytes__(self) -> bytes:
        return self.host + b":%d" % self.port


@dataclass(frozen=True)
class Connect:
    """A request for a tunnel."""

    target: Target


@dataclass(frozen=True)
class Forward:
    """A request for a plain http URL. ``head``: as the server gets it. ``length``: of its body in bytes, None for a chunked
    one."""

    target: Target
    head: bytes
    length: int | None


def read_request(head: bytes) -> Connect | Forward:
    """``head`` with its empty line. Raises BadRequest."""
    line, headers = _split(head)
    parts = line.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _VERSION.fullmatch(parts[2]):
        raise BadRequest("this is no HTTP/1.1 request")
    method, where, version = parts
    if method == b"CONNECT":
        return Connect(_target(where, None))
    scheme, separator, rest = where.partition(b"://")
    if not separator:
        raise BadRequest("this is a proxy: it takes CONNECT, and requests for whole http URLs")
    if scheme.lower() != b"http":
        raise BadRequest("CONNECT is for https; in the open, http alone is passed on")
    found = re.match(rb"[^/?#]*", rest)
    authority = found.group() if found else b""
    target = _target(authority, 80)
    path = rest[len(authority) :].partition(b"#")[0]
    if not path.startswith(b"/"):
        path = (b"/" + path) if path or method != b"OPTIONS" else b"*"
    kept = [(name, value) for name, value in _end_to_end(headers) if name.lower() != b"host"]
    host = target.host if target.port == 80 else bytes(target)
    head = _joined(b" ".join((method, path, version)), [(b"Host", host), *kept, (b"Connection", b"close")])
    return Forward(target, head, _body_length(headers))


def read_answer(head: bytes) -> tuple[int, bytes]:
    """An answer's status and reason. Raises BadRequest."""
    found = _STATUS.fullmatch(head.split(b"\r\n", 1)[0])
    if found is None:
        raise BadRequest("the answer is no HTTP/1.1", 502)
    return int(found.group(1)), found.group(2) or b""


def last_of_its_connection(head: bytes) -> bytes:
    """An answer's head as the client gets it: nothing may follow on this connection, whose next request could be for
    another server."""
    line, headers = _split(head)
    return _joined(line, [*_end_to_end(headers), (b"Connection", b"close")])


def refusal(status: int, reason: bytes, body: bytes) -> bytes:
    """A whole answer of our own."""
    headers = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Connection", b"close"),
    ]
    return _joined(b"HTTP/1.1 %d %s" % (status, reason), headers) + body


def connect_request(target: Target, authorization: bytes) -> bytes:
    headers = [(b"Host", bytes(target)), (b"Proxy-Authorization", authorization)]
    return _joined(b"CONNECT %s HTTP/1.1" % bytes(target), headers)


def _split(head: bytes) -> tuple[bytes, Headers]:
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers: Headers = []
    for text in lines:
        name, colon, value = text.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or b"\n" in value or b"\r" in value or b"\0" in value:
            raise BadRequest("a header line is malformed")  # a folded one too: nobody may send those
        headers.append((name, value.strip(b" \t")))
    return line, headers


def _joined(line: bytes, headers: Headers) -> bytes:
    return b"\r\n".join([line, *(b"%s: %s" % header for header in headers), b"", b""])


def _end_to_end(headers: Headers) -> Headers:
    named = {
        name.strip().lower() for key, value in headers if key.lower() == b"connection" for name in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP | named]


def _target(authority: bytes, default: int | None) -> Target:
    found = _AUTHORITY.fullmatch(authority.rpartition(b"@")[2] if default is not None else authority)
    port = int(found.group(2) or default or 0) if found else 0
    if found is None or not 0 < port < 65536:
        raise BadRequest("the target is no host:port")
    return Target(found.group(1), port)


def _body_length(headers: Headers) -> int | None:
    """None: chunked. Two lengths, or a length and chunks, could be read in two ways, and are refused."""
    lengths = {value for name, value in headers if name.lower() == b"content-length"}
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise BadRequest("the body's length is not clear")
        return None
    if len(lengths) > 1 or not all(value.isdigit() and len(value) < 19 for value in lengths):
        raise BadRequest("the body's length is not clear")
    return int(lengths.pop()) if lengths else 0
