"""The bundle of CA certificates that commands trust."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pod_host.host.java_store import java_store
from pod_host.host.trust import TrustBundle


def certificate(name: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM).decode()


def subjects(bundle: Path) -> set[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    return {part[0][1] for ca in context.get_ca_certs() for part in ca["subject"] if part[0][0] == "commonName"}


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    path = tmp_path / "ca-certificates.crt"
    path.write_text(certificate("A public root"))
    return path


def test_the_bundle_holds_the_public_roots_and_the_certificate(tmp_path: Path, roots: Path) -> None:
    trust = TrustBundle(tmp_path / "harness", roots)
    assert trust.path is None
    trust.accept(certificate("Egress one"))
    assert trust.path == tmp_path / "harness" / "egress-ca-bundle.pem"
    assert trust.path.is_symlink()
    assert subjects(trust.path) == {"A public root", "Egress one"}


def test_without_roots_of_the_image_the_packaged_ones_are_used(tmp_path: Path) -> None:
    trust = TrustBundle(tmp_path, tmp_path / "missing.crt")
    trust.accept(certificate("Egress one"))
    assert trust.path is not None
    assert "Egress one" in subjects(trust.path)
    assert len(subjects(trust.path)) > 50


def test_another_certificate_makes_another_file_and_moves_the_link(tmp_path: Path, roots: Path) -> None:
    trust = TrustBundle(tmp_path, roots)
    trust.accept(certificate("Egress one"))
    assert trust.path is not None
    with open(trust.path) as held_open:
        first = os.readlink(trust.path)
        trust.accept(certificate("Egress two"))
        assert os.readlink(trust.path) != first
        assert subjects(trust.path) == {"A public root", "Egress two"}
        assert "BEGIN CERTIFICATE" in held_open.read()  # whoever had the old one open reads it to its end
    for number in range(3):
        trust.accept(certificate(f"Egress {number}"))
    assert len(list((tmp_path / "trust").glob("*.pem"))) == 2


def test_the_same_certificate_writes_nothing(tmp_path: Path, roots: Path) -> None:
    trust = TrustBundle(tmp_path, roots)
    pem = certificate("Egress one")
    trust.accept(pem)
    assert trust.path is not None
    before = trust.path.stat()
    trust.accept(f"\n{pem}\n")
    assert (trust.path.stat().st_ino, trust.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_everybody_may_read_it_whatever_the_umask(tmp_path: Path, roots: Path) -> None:
    before = os.umask(0o077)
    try:
        trust = TrustBundle(tmp_path, roots)
        trust.accept(certificate("Egress one"))
    finally:
        os.umask(before)
    assert trust.path is not None
    assert trust.path.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "trust").stat().st_mode & 0o777 == 0o755


def test_what_is_no_certificate_leaves_the_bundle_as_it_is(tmp_path: Path, roots: Path) -> None:
    trust = TrustBundle(tmp_path, roots)
    trust.accept("")
    trust.accept("no certificate")
    assert trust.path is None
    trust.accept(certificate("Egress one"))
    trust.accept("no certificate")
    assert trust.path is not None
    assert subjects(trust.path) == {"A public root", "Egress one"}


def test_a_bundle_that_was_tampered_with_is_written_anew_at_the_next_start(tmp_path: Path, roots: Path) -> None:
    pem = certificate("Egress one")
    first = TrustBundle(tmp_path, roots)
    first.accept(pem)
    assert first.path is not None
    first.path.write_text("tampered")
    second = TrustBundle(tmp_path, roots)
    second.accept(pem)
    assert second.path is not None
    assert subjects(second.path) == {"A public root", "Egress one"}


@pytest.mark.parametrize(
    "harm",
    [
        lambda harness: (harness / "egress-ca-bundle.pem").write_text("broken"),
        lambda harness: (harness / "egress-ca-bundle.pem").resolve().chmod(0),
        lambda harness: (harness / "egress-ca-bundle.pem").resolve().unlink(),
        lambda harness: (harness / "egress-ca-bundle.pem").unlink(),
        lambda harness: (harness / "trust").rename(harness / "moved"),
        lambda harness: (harness / "trust").chmod(0),
        lambda harness: harness.chmod(0),
        lambda harness: (harness / "trust" / "wgetrc").write_text("ca_certificate = /tmp/mine"),
    ],
)
def test_what_was_changed_or_closed_is_mended_at_a_renewal(
    tmp_path: Path, roots: Path, harm: Callable[[Path], object]
) -> None:
    harness = tmp_path / "harness"
    trust = TrustBundle(harness, roots)
    pem = certificate("Egress one")
    trust.accept(pem)
    mode = harness.stat().st_mode
    harm(harness)
    trust.accept(pem)  # a renewal's
    assert trust.path is not None
    assert subjects(trust.path) == {"A public root", "Egress one"}
    assert trust.path.resolve().stat().st_mode & 0o777 == 0o644
    assert (harness / "trust").stat().st_mode & 0o777 == 0o755
    assert harness.stat().st_mode == mode
    assert "/tmp/mine" not in (harness / "trust" / "wgetrc").read_text()


def test_a_bundle_that_was_changed_is_mended_before_the_next_command_too(tmp_path: Path, roots: Path) -> None:
    trust = TrustBundle(tmp_path, roots)
    trust.look()
    trust.accept(certificate("Egress one"))
    assert trust.path is not None
    harms: list[Callable[[Path], object]] = [
        lambda path: path.write_text("broken"),
        lambda path: path.chmod(0),
        Path.unlink,
    ]
    for harm in harms:
        harm(trust.path.resolve())
        trust.look()
        assert subjects(trust.path) == {"A public root", "Egress one"}
        assert trust.path.stat().st_mode & 0o777 == 0o644


def test_files_for_clients_name_the_bundle_and_may_be_read_by_all(tmp_path: Path, roots: Path) -> None:
    trust = TrustBundle(tmp_path, roots)
    assert trust.client_files is None
    trust.accept(certificate("Egress one"))
    files = trust.client_files
    assert files is not None
    assert files.wgetrc.read_text() == f"ca_certificate = {trust.path}\n"
    assert files.apt_conf.read_text() == f'Acquire::https::CAInfo "{trust.path}";\n'
    for path in (files.wgetrc, files.apt_conf, files.node_preload, files.java_roots):
        assert path.parent == tmp_path / "trust"
        assert path.stat().st_mode & 0o777 == 0o644


def test_javas_store_holds_every_certificate_of_the_bundle(tmp_path: Path) -> None:
    bundle = certificate("A public root") + "some text\n" + certificate("Egress one") + certificate("Egress one")[:90]
    twice = bundle + bundle.partition("some text")[0]
    store = java_store(twice)
    assert store[:12] == bytes.fromhex("feedfeed 00000002 00000002")
    assert java_store("")[:12] == bytes.fromhex("feedfeed 00000002 00000000")


@pytest.mark.skipif(shutil.which("keytool") is None, reason="keytool, a part of java, is not installed here")
def test_java_reads_its_store(tmp_path: Path) -> None:
    store = tmp_path / "roots.jks"
    store.write_bytes(java_store(certificate("A public root") + certificate("Egress one")))
    command = ["keytool", "-list", "-v", "-keystore", str(store), "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "contains 2 entries" in listed
    assert "Owner: CN=Egress one" in listed
