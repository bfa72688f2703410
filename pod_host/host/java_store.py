"""A trust store for Java, made of PEM certificates without Java: the old JKS form, which every Java still reads.

Only certificates are in it. The digest at its end is the form's own, over a password that everybody knows: it tells a
damaged file, no more, and a store that is opened without a password is not even asked for it.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import struct
from typing import Final

_MAGIC: Final = 0xFEEDFEED
_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_PASSWORD: Final = "changeit"  # what Java's own store has, and its tools assume
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


def java_store(bundle: str) -> bytes:
    """The store with every certificate of a PEM bundle. What looks like one and is none is left out."""
    certificates: dict[bytes, None] = {}
    for pem in _PEM.findall(bundle):
        try:
            certificates[ssl.PEM_cert_to_DER_cert(pem)] = None
        except ValueError:  # Java would refuse the whole store; other clients skip it too
            continue
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"root-{number}")
        body += struct.pack(">Q", 0) + _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
