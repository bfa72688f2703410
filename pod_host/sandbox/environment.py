"""The environment of a command, in layers: later ones win.

the container's own variables, but for the host's and any proxy's
what makes programs wait for no person, and HOME
the session's variables
the proxy, and the bundle of roots it is trusted by
TRACEPARENT
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DEFAULTS: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

_HOST_PREFIXES: Final = ("NYLORUN_", "POD_HOST_", "OTEL_")  # the last: a collector's address, and its key
# What belongs to the shell or the desktop that started the host: a command has neither, and no business with its agents.
_HOST_ONLY: Final = frozenset(
    {
        "PWD", "OLDPWD", "SHLVL", "_",
        "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS", "GPG_TTY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR",
        "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
    }
)  # fmt: skip

_NO_PERSON: Final = {
    "TERM": "dumb",
    "GIT_TERMINAL_PROMPT": "0",
    # `true` takes the text that is proposed: `git rebase --continue` goes on, `git commit` without -m stops at once.
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "npm_config_yes": "true",
    "npm_config_update_notifier": "false",
    # A volume may have been written under another uid: git would refuse to work in its repositories.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}

_PROXY_NAMES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
_TRUST_NAMES: Final = (
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
)


def command_environment(
    *,
    base: Mapping[str, str],
    home: Path,
    session: Mapping[str, str],
    proxy: str | None,
    trust_bundle: Path | None,
    traceparent: str | None,
) -> dict[str, str]:
    """The whole environment of one command, built at its start: the proxy's token changes.

    ``base`` is the host's own environment; ``proxy`` the URL with its credentials, None when there is no proxy;
    ``trust_bundle`` None while none was written.
    """
    environment = {**_DEFAULTS, **{name: value for name, value in base.items() if not _is_hosts(name)}}
    environment |= {**_NO_PERSON, "HOME": str(home)}
    environment |= session
    if proxy is not None:
        environment |= dict.fromkeys(_PROXY_NAMES, proxy)
        environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")
        environment["NODE_USE_ENV_PROXY"] = "1"  # node reads the variables only then
    if trust_bundle is not None:
        environment |= dict.fromkeys(_TRUST_NAMES, str(trust_bundle))
    if traceparent is not None:
        environment["TRACEPARENT"] = traceparent
    return environment


def _is_hosts(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(_HOST_PREFIXES) or upper.endswith("_PROXY") or name in _HOST_ONLY
