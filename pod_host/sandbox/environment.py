"""The environment of a command, in layers: later ones win.

the container's own variables, but for the host's and any proxy's
what makes programs wait for no person, and HOME
the session's variables
the proxy, and the bundle of roots it is trusted by
TRACEPARENT

What each client needs of the proxy's part, as the tests in tests/clients hold it:

=====================  ==================================  ================================================
client                 proxy                               trust
=====================  ==================================  ================================================
curl                   https_proxy, both cases             CURL_CA_BUNDLE
wget                   https_proxy, lower case             WGETRC: a file that names the bundle
git                    http.proxy by GIT_CONFIG_COUNT      GIT_SSL_CAINFO
pip                    HTTPS_PROXY                         PIP_CERT
uv                     HTTPS_PROXY                         SSL_CERT_FILE
requests               HTTPS_PROXY                         REQUESTS_CA_BUNDLE
httpx, urllib          HTTPS_PROXY                         SSL_CERT_FILE
go                     HTTPS_PROXY                         SSL_CERT_FILE
cargo                  HTTPS_PROXY                         CARGO_HTTP_CAINFO
npm                    HTTPS_PROXY                         npm_config_cafile: beats any npmrc
apt                    https_proxy, lower case             APT_CONFIG: a file that names the bundle
node                   NODE_USE_ENV_PROXY (22.21, 24.5);   NODE_EXTRA_CA_CERTS
                       before: a preload by NODE_OPTIONS
java                   JAVA_TOOL_OPTIONS, relay alone:     JAVA_TOOL_OPTIONS, a store made of the bundle
                       it sends no credentials of its own
=====================  ==================================  ================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from pod_host.sandbox.requests import TRACEPARENT

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
}

_PROXY_NAMES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
_COUNT_DIGITS: Final = 9  # of GIT_CONFIG_COUNT: a longer one is none
_NO_PROXY: Final = "localhost,127.0.0.1"
_TRUST_NAMES: Final = (
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "npm_config_cafile",  # a cafile of the image's npmrc would win over NODE_EXTRA_CA_CERTS
)


@dataclass(frozen=True)
class ClientFiles:
    """What variables name for clients that no plain variable tells enough. Commands must be able to read them all."""

    wgetrc: Path
    apt_conf: Path
    node_preload: Path
    java_roots: Path


def command_environment(
    *,
    base: Mapping[str, str],
    home: Path,
    session: Mapping[str, str],
    proxy: str | None,
    trust_bundle: Path | None,
    traceparent: str | None,
    client_files: ClientFiles | None = None,
) -> dict[str, str]:
    """The whole environment of one command, built at its start: the proxy's token changes.

    ``base`` is the host's own environment; ``proxy`` the URL, with credentials but for a relay's, None when there is no
    proxy; ``trust_bundle`` and ``client_files`` None while none were written.
    """
    environment = {**_DEFAULTS, **{name: value for name, value in base.items() if not _is_hosts(name)}}
    environment |= {**_NO_PERSON, "HOME": str(home)}
    environment |= session
    # A volume may have been written under another uid: git would refuse to work in its repositories.
    _add_git_setting(environment, "safe.directory", "*")
    if proxy is not None:
        _add_proxy(environment, proxy)
    if trust_bundle is not None:
        environment |= dict.fromkeys(_TRUST_NAMES, str(trust_bundle))
    if client_files is not None:
        _add_client_files(environment, client_files, proxy)
    if traceparent is not None:
        environment[TRACEPARENT] = traceparent
    return environment


def _add_proxy(environment: dict[str, str], proxy: str) -> None:
    environment |= dict.fromkeys(_PROXY_NAMES, proxy)
    environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), _NO_PROXY)
    environment["NODE_USE_ENV_PROXY"] = "1"  # node reads the variables only then
    parts = urlsplit(proxy)
    if "%" in (parts.password or ""):
        # git decodes the credentials, and so does the curl below it: what is encoded once comes out as another token.
        twice = f"{parts.username}:{quote(parts.password or '', safe='')}"
        _add_git_setting(environment, "http.proxy", f"{parts.scheme}://{twice}@{parts.netloc.rpartition('@')[2]}")


def _add_client_files(environment: dict[str, str], files: ClientFiles, proxy: str | None) -> None:
    # These two hold more than trust: whoever brought a file of their own keeps it.
    environment.setdefault("WGETRC", str(files.wgetrc))
    environment.setdefault("APT_CONFIG", str(files.apt_conf))
    if proxy is None:
        return
    _put_before(environment, "NODE_OPTIONS", f"--require {_quoted(files.node_preload)}")
    parts = urlsplit(proxy)
    if parts.password is None:  # java could not send credentials, and says on stderr that it read the variable
        options = [
            f"-D{kind}.proxy{what}"
            for kind in ("https", "http")
            for what in (f"Host={parts.hostname}", f"Port={parts.port}")
        ]
        options.append("-Dhttp.nonProxyHosts=" + _NO_PROXY.replace(",", "|"))
        options.append(f"-Djavax.net.ssl.trustStore={_quoted(files.java_roots)}")
        options.append("-Djavax.net.ssl.trustStoreType=JKS")
        _put_before(environment, "JAVA_TOOL_OPTIONS", " ".join(options))


def _put_before(environment: dict[str, str], name: str, options: str) -> None:
    """The variable's own options stay, and as the later ones they win."""
    environment[name] = f"{options} {environment.get(name, '')}".strip()


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def _add_git_setting(environment: dict[str, str], name: str, value: str) -> None:
    """After what the container or the session set in the same way. A count that is none is git's to complain of."""
    count = environment.get("GIT_CONFIG_COUNT", "0")
    if count.isascii() and count.isdigit() and len(count) <= _COUNT_DIGITS:
        environment |= {
            "GIT_CONFIG_COUNT": str(int(count) + 1),
            f"GIT_CONFIG_KEY_{int(count)}": name,
            f"GIT_CONFIG_VALUE_{int(count)}": value,
        }


def _is_hosts(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(_HOST_PREFIXES) or upper.endswith("_PROXY") or name in _HOST_ONLY
