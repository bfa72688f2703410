"""What a command's environment is made of, at its start: the image's variables, the session's, the proxy with the token of
the moment, the bundle once it is there (Harness API v5, sections 3 and 9)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pod_host.host.credentials import Credentials
from pod_host.host.hardening import HOME, sandbox_config, temporary_directory
from pod_host.host.relay import Relay
from pod_host.host.trust import TrustBundle
from pod_host.sandbox import TRACEPARENT, command_environment
from pod_host.settings import Settings

PROXY_USER = "nylorun"  # the proxy looks at the password alone


class Environments:
    """``base``: the host's own environment. The worker's side takes out of it what no command may see. ``relay``: what
    commands use in the egress proxy's stead."""

    def __init__(
        self,
        settings: Settings,
        base: Mapping[str, str],
        credentials: Credentials,
        trust: TrustBundle,
        relay: Relay | None = None,
    ) -> None:
        self._settings = settings
        temporary = temporary_directory(sandbox_config(settings))
        self._base = {**({"TMPDIR": str(temporary)} if temporary else {}), **base}
        self._credentials = credentials
        self._trust = trust
        self._relay = relay
        self._latest: dict[str, str] = {}
        self._made_of: tuple[Mapping[str, str], str | None, Path | None] | None = None

    def of_call(self, declared: Mapping[str, str], traceparent: str | None) -> Mapping[str, str]:
        """``declared``: the session's variables, or those that a step of the setup names. Not to be changed: the next call
        of its like gets the same."""
        self._trust.look()
        made_of = declared, self._credentials.egress_token, self._trust.path
        if self._made_of != made_of:
            self._latest = command_environment(
                base=self._base,
                home=self._settings.harness_dir / HOME,
                session=declared,
                proxy=self._proxy(),
                trust_bundle=self._trust.path,
                client_files=self._trust.client_files,
                traceparent=None,
            )
            self._made_of = dict(declared), *made_of[1:]
        return self._latest if traceparent is None else {**self._latest, TRACEPARENT: traceparent}

    def of_setup(self, declared: Mapping[str, str]) -> Mapping[str, str]:
        return self.of_call(declared, None)

    def _proxy(self) -> str | None:
        """None before the first join, and when the Runtime has no proxy."""
        token, proxy = self._credentials.egress_token, self._settings.egress_proxy
        if token is None or proxy is None:
            return None
        if self._relay is not None:
            return self._relay.url
        scheme, _, address = proxy.partition("://")
        return f"{scheme}://{PROXY_USER}:{quote(token, safe='')}@{address}"
