# ruff: noqa: PT017 - what is said of a refusal is a property here
"""What host/join and host/renew are answered, over HTTP, and what becomes of it: tokens' lives, trust, redaction."""

from __future__ import annotations

import base64
import math
import tempfile
from pathlib import Path
from typing import NoReturn

import httpx

from pod_host.client import HostApi
from pod_host.contract.base import JsonObject
from pod_host.contract.hosting import HostJoinAnswer, HostJoinRequest
from pod_host.errors import JoinRefused, JoinUnavailable
from pod_host.host import credentials
from pod_host.host.trust import TrustBundle
from tests.fuzz import hostile, loop
from tests.fuzz.source import Source, pick

JOIN_TOKEN = "join-token-0123456789"
_PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
_STATUSES = (200, 200, 200, 200, 400, 401, 500, 204, 302, 429, 599)


def run(source: Source) -> None:
    status = pick(source, _STATUSES)
    body = _body(source)
    renewed = source.below(2) == 1
    with loop.no_bugs():
        answer = loop.run(_asked(status, body, renewed))
        if answer is not None:
            _taken(answer)


def _body(source: Source) -> bytes:
    good: JsonObject = {
        "hostToken": _token(source),
        "egressToken": "egress",
        "sandboxId": "box",
        "epoch": 1,
        "expiresAt": "2030-01-01T00:00:00Z",
        "caCertificate": _PEM,
        "setup": {"commands": ["true"]},
        "seeded": False,
    }
    if source.below(8) == 1:
        good = {"error": {"code": "no", "message": f"{JOIN_TOKEN} is not good"}}
    return hostile.json_text(source, good).encode("utf-8", "surrogatepass")


def _token(source: Source) -> str:
    claims = hostile.json_text(source, {"iat": 1_000_000, "exp": 1_000_900}).encode("utf-8", "surrogatepass")
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s"


async def _asked(status: int, body: bytes, renewed: bool) -> HostJoinAnswer | None:
    api = HostApi("http://runtime.test", None)
    await api._client.aclose()
    api._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(status, content=body)))
    request = HostJoinRequest(sandbox_id="box", pod_uid="pod", join_token=JOIN_TOKEN)
    try:
        return await (api.renew(JOIN_TOKEN) if renewed else api.join(request))
    except (JoinRefused, JoinUnavailable) as refusal:
        assert JOIN_TOKEN not in str(refusal)
        assert len(str(refusal)) < 1000
        return None
    finally:
        await api.close()


def _taken(answer: HostJoinAnswer) -> None:
    life = credentials.life_seconds(answer.host_token, answer.expires_at)
    assert 0 < life < math.inf
    with tempfile.TemporaryDirectory(prefix="pod-host-fuzz-") as directory:
        bundle = _Unwritten(Path(directory))
        bundle.accept(answer.ca_certificate)


class _Unwritten(TrustBundle):
    """Stops where a bundle would be written: the public roots, once for each certificate, are slow."""

    def _write(self, certificate: str) -> NoReturn:
        certificate.encode()
        raise OSError("not here")
