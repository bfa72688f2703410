"""The bundle of CA certificates that commands trust: the public roots and the egress proxy's own (section 9).

``<harness dir>/egress-ca-bundle.pem`` is a link to a file in ``<harness dir>/trust/``. The file is never changed: a new
certificate makes a new one, and the link moves, so nobody reads half a bundle. Beside it stand the files that variables
name for clients which no plain variable tells enough (`ClientFiles`).
"""

from __future__ import annotations

import hashlib
import os
import ssl
from pathlib import Path

from pod_host.host import files
from pod_host.host.java_store import java_store
from pod_host.host.log import get_log
from pod_host.host.seal import Seal
from pod_host.sandbox import ClientFiles

LINK = "egress-ca-bundle.pem"
DIRECTORY = "trust"
SYSTEM_ROOTS = Path("/etc/ssl/certs/ca-certificates.crt")
NODE_PRELOAD = Path(__file__).with_name("node_proxy.cjs")

log = get_log()


class TrustBundle:
    """``path`` and ``client_files`` are None until a certificate came. Commands must be able to read them whatever their
    uid."""

    def __init__(self, harness_dir: Path, system_roots: Path = SYSTEM_ROOTS) -> None:
        self._harness_dir = harness_dir
        self._system_roots = system_roots
        self._certificate: str | None = None
        self._seal: Seal | None = None
        self.path: Path | None = None
        self.client_files: ClientFiles | None = None

    def accept(self, certificate: str) -> None:
        """The certificate of a join's or a renewal's answer (PEM). Writes only when it is another than before, or when
        what was written is not as it was; what is no certificate, or cannot be written, is logged, and the bundle stays
        as it was."""
        certificate = certificate.strip()
        if not certificate:
            return
        if certificate == self._certificate:
            self._mend(whole=self._seal is None or self._seal.whole)
            return
        try:
            ssl.PEM_cert_to_DER_cert(certificate)
        except ValueError as fault:
            log.error("trust.invalid", reason=f"the answer's caCertificate is no PEM certificate: {fault}")
            return
        if (path := self._keep(certificate)) is not None:
            log.info("trust.written", path=str(path))

    def look(self) -> None:
        """Before a command starts: write the bundle again when somebody changed it, or closed it."""
        self._mend(whole=self._seal is None or self._seal.target_whole)

    def _mend(self, *, whole: bool) -> None:
        if whole or self._certificate is None or self._seal is None:
            return
        self._seal.restore_modes()
        if self._keep(self._certificate) is not None:
            log.warning("trust.mended", reason="the bundle, or who may read it, had been changed")

    def _keep(self, certificate: str) -> Path | None:
        try:
            path = self._write(certificate)
            self._seal = Seal.of(self._harness_dir / LINK, self._harness_dir / DIRECTORY)
        except OSError as fault:
            log.error("trust.invalid", reason=f"the bundle cannot be written: {fault}")
            return None
        self._certificate = certificate
        self.path, self.client_files = self._harness_dir / LINK, client_files(self._harness_dir)
        return path

    def _write(self, certificate: str) -> Path:
        directory = self._harness_dir / DIRECTORY
        make_trust_directory(self._harness_dir)
        text = f"{self._public_roots().strip()}\n{certificate}\n"
        bundle = text.encode()
        name = f"egress-{hashlib.sha256(bundle).hexdigest()[:16]}.pem"
        files.replace(directory / name, bundle, 0o644, durable=False)
        link = self._harness_dir / LINK
        beside = client_files(self._harness_dir)
        for path, content in (
            (beside.java_roots, java_store(text)),
            (beside.wgetrc, f"ca_certificate = {link}\n".encode()),
            (beside.apt_conf, f'Acquire::https::CAInfo "{link}";\n'.encode()),
            (beside.node_preload, NODE_PRELOAD.read_bytes()),
        ):
            files.replace(path, content, 0o644, durable=False)
        before = os.readlink(link) if link.is_symlink() else ""
        files.replace_link(link, f"{DIRECTORY}/{name}")
        for old in directory.glob("*.pem"):  # the one before stays, for whoever is about to open it
            if old.name not in (name, Path(before).name):
                files.remove(old)
        return directory / name

    def _public_roots(self) -> str:
        try:
            return self._system_roots.read_text(encoding="ascii", errors="replace")
        except OSError:  # an image without ca-certificates
            import certifi

            return certifi.contents()


def client_files(harness_dir: Path) -> ClientFiles:
    directory = harness_dir / DIRECTORY
    return ClientFiles(
        wgetrc=directory / "wgetrc",
        apt_conf=directory / "apt.conf",
        node_preload=directory / "node-proxy.cjs",
        java_roots=directory / "java-roots.jks",
    )


def make_trust_directory(harness_dir: Path) -> Path:
    """``<harness dir>/trust``, made when missing. The worker's domain names it, so it must be there before the worker."""
    directory = harness_dir / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    os.chmod(directory, 0o755)
    return directory
