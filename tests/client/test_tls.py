"""TLS to the Runtime: which roots are trusted, and what a bad POD_HOST_RUNTIME_CA says."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pod_host.client import Channel, Gates, HostApi, runtime_tls
from pod_host.client.tls import trusting_nothing
from pod_host.contract.hosting import HostJoinRequest
from pod_host.errors import ChannelClosed, ConfigurationError, JoinUnavailable
from tests.client.conftest import Authority
from tests.client.peers import TOKEN, Asked, Reply, channel, core, ignore, refuse_requests, until_closed, web

JOIN = HostJoinRequest(sandbox_id="sbx", pod_uid="uid-1", join_token="join-token")
ANSWER = {
    "hostToken": "h",
    "egressToken": "e",
    "sandboxId": "sbx",
    "epoch": 1,
    "expiresAt": "2026-01-01T00:00:00Z",
    "caCertificate": "PEM",
}


async def answer(asked: Asked) -> Reply:
    return Reply(body=ANSWER)


def test_the_public_roots_are_trusted_and_the_given_ca_with_them(authority: Authority) -> None:
    public, with_ours = runtime_tls(None), runtime_tls(authority.ca_file)
    assert len(public.get_ca_certs()) > 50
    assert len(with_ours.get_ca_certs()) == len(public.get_ca_certs()) + 1
    for context in (public, with_ours):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname is True


async def test_join_gates_and_channel_verify_the_runtime_with_it(authority: Authority) -> None:
    tls = runtime_tls(authority.ca_file)
    async with web(answer, authority.server) as runtime:
        api, gates = HostApi(runtime.url, tls), Gates(runtime.url, tls)
        assert (await api.join(JOIN)).host_token == "h"
        assert (await gates.call("/x", b"{}", key="k", token=lambda: "t"))["epoch"] == 1
        await api.close()
        await gates.close()
    async with core(until_closed, ssl=authority.server) as listener, channel(listener.url, tls=tls):
        assert len(listener.upgrades) == 1


@pytest.mark.parametrize("roots", ["public", "none"])
async def test_an_unknown_authority_is_not_trusted(authority: Authority, roots: str) -> None:
    tls = runtime_tls(None) if roots == "public" else trusting_nothing()
    async with web(answer, authority.server) as runtime:
        api = HostApi(runtime.url, tls if roots == "public" else None)
        with pytest.raises(JoinUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await api.join(JOIN)
        await api.close()
        with pytest.raises(ChannelClosed, match="CERTIFICATE_VERIFY_FAILED"):
            await Channel.connect(runtime.url, TOKEN, tls=tls, on_request=refuse_requests, on_message=ignore)


@pytest.mark.parametrize(
    "content", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_without_certificates_is_a_fault_of_configuration(tmp_path: Path, content: str) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"^POD_HOST_RUNTIME_CA is '.*ca\.pem'; it holds no certificate"):
        runtime_tls(ca_file)


def test_a_file_that_cannot_be_read_is_a_fault_of_configuration(tmp_path: Path) -> None:
    for unreadable in (tmp_path / "absent.pem", tmp_path):
        with pytest.raises(ConfigurationError) as fault:
            runtime_tls(unreadable)
        assert str(fault.value).startswith(f"POD_HOST_RUNTIME_CA is '{unreadable}'; it ")
