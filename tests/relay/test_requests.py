"""Heads as the relay reads and writes them."""

from __future__ import annotations

import pytest

from pod_host.relay.requests import (
    BadRequest,
    Connect,
    Forward,
    Target,
    connect_request,
    last_of_its_connection,
    read_answer,
    read_request,
)


def forward(head: bytes) -> Forward:
    request = read_request(head)
    assert isinstance(request, Forward)
    return request


def test_a_request_for_a_tunnel_keeps_nothing_but_its_target() -> None:
    request = read_request(b"CONNECT a.test:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic eA==\r\n\r\n")
    assert request == Connect(Target(b"a.test", 443))
    assert connect_request(Target(b"[::1]", 80), b"Basic t") == (
        b"CONNECT [::1]:80 HTTP/1.1\r\nHost: [::1]:80\r\nProxy-Authorization: Basic t\r\n\r\n"
    )


def test_a_plain_request_becomes_the_servers_own_and_the_last_of_its_connection() -> None:
    request = forward(
        b"POST http://u:p@a.test:8080/x?y=1#z HTTP/1.1\r\nHost: other.test\r\nConnection: keep-alive, X-Mine\r\n"
        b"X-Mine: 1\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nUpgrade: h2c\r\n"
        b"accept: */*\r\nContent-Length: 12\r\n\r\n"
    )
    assert request.target == Target(b"a.test", 8080)
    assert request.length == 12
    assert request.head == (
        b"POST /x?y=1 HTTP/1.1\r\nHost: a.test:8080\r\naccept: */*\r\nContent-Length: 12\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("line", "first"),
    [
        (b"GET http://a.test HTTP/1.1", b"GET / HTTP/1.1"),
        (b"GET http://a.test?q HTTP/1.0", b"GET /?q HTTP/1.0"),
        (b"GET HTTP://a.test/a//b HTTP/1.1", b"GET /a//b HTTP/1.1"),
        (b"OPTIONS http://a.test HTTP/1.1", b"OPTIONS * HTTP/1.1"),
    ],
)
def test_the_path_is_what_stands_after_the_host(line: bytes, first: bytes) -> None:
    request = forward(line + b"\r\n\r\n")
    assert request.head.split(b"\r\n")[:2] == [first, b"Host: a.test"]
    assert (request.target, request.length) == (Target(b"a.test", 80), 0)


def test_a_chunked_body_has_no_length() -> None:
    assert forward(b"PUT http://a.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").length is None


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1",
        b"GET https://a.test/ HTTP/1.1",
        b"GET ftp://a.test/ HTTP/1.1",
        b"GET http://a.test/ HTTP/2.0",
        b"GET http:// HTTP/1.1",
        b"GET http://a.test:0/ HTTP/1.1",
        b"GET http://a.test/ b HTTP/1.1",
        b"G\x00T http://a.test/ HTTP/1.1",
        b"CONNECT a.test HTTP/1.1",
        b"CONNECT a.test:99999 HTTP/1.1",
        b"CONNECT a\rb:443 HTTP/1.1",
        b"CONNECT u@a.test:443 HTTP/1.1",
        b"GET http://a.test/ HTTP/1.1\r\nno colon",
        b"GET http://a.test/ HTTP/1.1\r\nA: 1\r\n folded",
        b"GET http://a.test/ HTTP/1.1\r\nA : 1",
        b"GET http://a.test/ HTTP/1.1\r\nA: 1\nB: 2",
        b"GET http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"GET http://a.test/ HTTP/1.1\r\nContent-Length: +1",
        b"GET http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"GET http://a.test/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked",
    ],
)
def test_what_could_be_read_in_two_ways_or_in_none_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(head + b"\r\n\r\n")


def test_answers() -> None:
    assert read_answer(b"HTTP/1.1 200 Connection Established\r\n\r\n") == (200, b"Connection Established")
    assert read_answer(b"HTTP/1.0 403\r\n\r\n") == (403, b"")
    with pytest.raises(BadRequest):
        read_answer(b"SSH-2.0\r\n\r\n")
    assert last_of_its_connection(b"HTTP/1.1 200 OK\r\nKeep-Alive: 5\r\nConnection: keep-alive\r\nA: b\r\n\r\n") == (
        b"HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n"
    )
