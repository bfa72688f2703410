"""The Tenant's own signing key and certificate authority, kept in ``state_dir/keys`` (Harness API v5, section 9).

Tokens are ES256 JWTs. Their kinds differ by header ``typ`` and by audience, so that one is never taken for another.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pod_host.contract.base import Json, JsonObject
from pod_host.contract.encoding import decode, encode
from pod_host.errors import ConfigurationError, PodHostError

REDACTED: Final = "[nylorun token redacted]"
_JWT = re.compile(rb"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_CA_YEARS: Final = 10


class TokenRefused(PodHostError):
    """A token that is not ours, is over, or is of another kind."""

    code = "unauthorized"


@dataclass(frozen=True)
class TokenKind:
    """``typ`` of the header and ``aud`` of the claims."""

    typ: str
    audience: str


HOST: Final = TokenKind("nylorun-host+jwt", "nylorun-harness-api")
EGRESS: Final = TokenKind("nylorun-egress+jwt", "nylorun-egress")
RUN: Final = TokenKind("nylorun-run+jwt", "nylorun-gates")


class Authority:
    """Mints and checks tokens, redacts them, and holds the CA whose certificate a join answers."""

    def __init__(self, keys_dir: Path, tenant_id: str) -> None:
        keys_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._issuer = f"urn:nylorun:tenant:{tenant_id}"
        self._key = _key_at(keys_dir / "tokens.pem")
        self._public = self._key.public_key()
        self.ca_key = _key_at(keys_dir / "ca-key.pem")
        self.ca_certificate = _certificate_at(keys_dir / "ca.pem", self.ca_key)

    def mint(self, kind: TokenKind, claims: JsonObject, life: float) -> tuple[str, float]:
        """A token and the second at which it ends."""
        now = int(time.time())
        expires = now + max(1, round(life))
        body = {
            **claims,
            "iss": self._issuer,
            "aud": kind.audience,
            "iat": now,
            "exp": expires,
            "jti": secrets.token_hex(8),
        }
        return jwt.encode(body, self._key, algorithm="ES256", headers={"typ": kind.typ}), float(expires)

    def check(self, kind: TokenKind, token: str) -> JsonObject:
        """The claims of a good token of this kind. Raises TokenRefused."""
        try:
            if jwt.get_unverified_header(token).get("typ") != kind.typ:
                raise TokenRefused(f"the token is no {kind.typ}")
            return jwt.decode(
                token,
                self._public,
                algorithms=["ES256"],
                audience=kind.audience,
                issuer=self._issuer,
                options={"require": ["exp", "iat", "aud", "iss", "jti"]},
            )
        except jwt.InvalidTokenError as fault:
            raise TokenRefused(str(fault)) from None

    def is_kind(self, kind: TokenKind, token: str) -> bool:
        """Whether the header says this kind; nothing else is looked at."""
        try:
            return bool(jwt.get_unverified_header(token).get("typ") == kind.typ)
        except jwt.InvalidTokenError:
            return False

    def redact(self, value: Json) -> Json:
        """``value`` with every token that this Tenant signed replaced, wherever in a text it stands; over ones too."""
        text = encode(value)
        if b"eyJ" not in text:
            return value
        redacted = _JWT.sub(self._instead, text)
        return value if redacted == text else decode(redacted)

    def _instead(self, found: re.Match[bytes]) -> bytes:
        try:
            jwt.decode(
                found.group().decode(),
                self._public,
                algorithms=["ES256"],
                options={"verify_exp": False, "verify_aud": False, "verify_iat": False, "verify_nbf": False},
            )
        except jwt.InvalidTokenError:
            return found.group()
        return REDACTED.encode()


def write_private(path: Path, content: bytes) -> None:
    """A file that its owner alone reads, whole or not there at all."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _key_at(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        made = ec.generate_private_key(ec.SECP256R1())
        write_private(
            path,
            made.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        return made
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError:
        raise ConfigurationError([f"{path}: not a private key; remove it to have another made"]) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError([f"{path}: not an EC key; remove it to have another made"])
    return key


def _certificate_at(path: Path, key: ec.EllipticCurvePrivateKey) -> str:
    """The CA's certificate in PEM, made when it is missing, over, or of another key."""
    if path.exists():
        text = path.read_text()
        try:
            kept = x509.load_pem_x509_certificate(text.encode())
        except ValueError:
            raise ConfigurationError([f"{path}: not a certificate; remove it to have another made"]) from None
        if kept.not_valid_after_utc > datetime.now(UTC) and kept.public_key() == key.public_key():
            return text
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Nylorun egress CA (pod-host dev)")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # a pod's clock may be a little behind
        .not_valid_after(now + timedelta(days=365 * _CA_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = made.public_bytes(serialization.Encoding.PEM).decode()
    write_private(path, text.encode())
    return text
