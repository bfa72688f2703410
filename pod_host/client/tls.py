"""TLS to the Runtime: the public roots and, when POD_HOST_RUNTIME_CA names a file, its roots too."""

from __future__ import annotations

import ssl
from pathlib import Path

from pod_host.errors import ConfigurationError


def runtime_tls(ca_file: Path | None) -> ssl.SSLContext:
    """A context that verifies the Runtime. For https and wss alone: reading the public roots takes 20 ms and more.

    Raises ConfigurationError when ``ca_file`` cannot be read or holds no certificate.
    """
    import certifi  # for https alone

    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except ssl.SSLError as fault:  # an OSError too, so it comes first
            raise ConfigurationError(
                [f"POD_HOST_RUNTIME_CA is {str(ca_file)!r}; it holds no certificate in PEM form ({fault.reason})"]
            ) from None
        except OSError as fault:
            raise ConfigurationError(
                [f"POD_HOST_RUNTIME_CA is {str(ca_file)!r}; it cannot be read: {fault.strerror}"]
            ) from None
    return context


def trusting_nothing() -> ssl.SSLContext:
    """For http URLs: an HTTP client wants a context all the same. It costs nothing, and https fails with it."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
