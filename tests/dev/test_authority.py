"""Keys, tokens, the CA, and who may read them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from pod_host.dev.authority import EGRESS, HOST, RUN, Authority, TokenRefused
from pod_host.errors import ConfigurationError
from tests.dev.conftest import World


def test_keys_and_ca_are_made_once_and_kept(tmp_path: Path) -> None:
    first = Authority(tmp_path / "keys", "t")
    token, expires = first.mint(HOST, {"sub": "s"}, 60)
    second = Authority(tmp_path / "keys", "t")
    assert second.check(HOST, token)["exp"] == expires
    assert second.ca_certificate == first.ca_certificate
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()} == {0o600}


def test_the_ca_may_sign_leaves_and_nothing_below_them(tmp_path: Path) -> None:
    certificate = x509.load_pem_x509_certificate(Authority(tmp_path, "t").ca_certificate.encode())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    certificate.verify_directly_issued_by(certificate)


def test_a_token_is_of_one_kind_one_tenant_and_one_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a", "t")
    token, _ = authority.mint(RUN, {}, 60)
    for kind in (HOST, EGRESS):
        with pytest.raises(TokenRefused):
            authority.check(kind, token)
    for other in (Authority(tmp_path / "b", "t"), Authority(tmp_path / "a", "other")):
        with pytest.raises(TokenRefused):
            other.check(RUN, token)
    head, body, signature = token.split(".")
    for forged in (f"{head}.{body}.", f"{head}.{body[:-2]}AA.{signature}", "", "..", token + "x"):
        with pytest.raises(TokenRefused):
            authority.check(RUN, forged)


def test_only_tokens_of_ours_are_redacted_over_ones_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a", "t")
    ours, _ = authority.mint(EGRESS, {}, 60)
    theirs, _ = Authority(tmp_path / "b", "t").mint(EGRESS, {}, 60)
    value = {"a": [f"x{theirs}y", 1, None, "\ud83d"], "b": f"http://n:{ours}@h", "c": {ours: True}}
    assert authority.redact(value) == {
        "a": [f"x{theirs}y", 1, None, "\ud83d"],
        "b": "http://n:[nylorun token redacted]@h",
        "c": {"[nylorun token redacted]": True},
    }


def test_a_key_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tokens.pem").write_text("nonsense")
    with pytest.raises(ConfigurationError, match=r"tokens\.pem: not a private key"):
        Authority(tmp_path, "t")


async def test_nothing_secret_in_the_state_directory_is_readable_by_others(world: World) -> None:
    await world.pod.join()
    state = world.config.state_dir
    for path in [state / "join-token", *state.glob("runtime.sqlite*"), *(state / "keys").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
