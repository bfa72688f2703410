"""The environment of ``pod-host run``, read once: nothing else reads it.

All faults are told together, one line each: the variable, the value at fault (never a secret) and how to mend it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from pod_host import limits
from pod_host.errors import ConfigurationError

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]
Egress = Literal["direct", "relay"]
Value = TypeVar("Value")

PROTECTIONS: Final = ("files", "signals", "limits")
"""What ``POD_HOST_CONFINEMENT`` can require by name: that commands cannot reach the host's files, cannot signal host and
worker, cannot set their limits, priorities and processors."""

_HARNESS_ID: Final = re.compile(r"[a-z][a-z0-9-]{1,62}")
_POD_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_ID_CHARACTERS: Final = 512  # of any id on the wire
_UID_MOST: Final = 2**31 - 1
_SHOWN_CHARACTERS: Final = 80  # of a value at fault
_PREFIXES: Final = ("POD_HOST_", "NYLORUN_")
_OF_A_SERVICE: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT|PORT)(_\w+)?$")  # as the kubelet names them
_ALIKE: Final = 0.9  # of 1, as difflib counts: one letter of a short name


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address: a host name or an IP address (IPv6 without brackets), and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """``harness_url`` and ``gates_url`` end without a slash. ``egress_proxy`` None: no proxy variables.
    ``log_format`` None: text on a terminal, else JSON. ``required_confinement``: a host that lacks one of these
    protections does not start. ``in_cluster``: a kubelet started us, so every file is the image's or a volume's.
    ``home``: of whoever started us. ``egress``: whether commands reach the egress proxy themselves, or by the relay.
    ``otlp_endpoint``: the operator's collector of spans, by OTLP over HTTP; None: no spans. ``misspelt``: a sentence for
    each variable that is no setting and looks like one."""

    sandbox_id: str
    pod_uid: str
    join_file: Path
    harness_url: str
    gates_url: str
    egress_proxy: str | None
    probes: tuple[Address, ...]
    harness_id: str
    harness_dir: Path
    workspace_dir: Path
    skills_dir: Path
    network_gate: bool
    renew_seconds: float
    slots: int
    shells_ahead: int
    sandbox_uid: int
    drain_seconds: float
    runtime_ca: Path | None
    log_level: LogLevel
    log_format: LogFormat | None
    required_confinement: frozenset[str]
    in_cluster: bool
    home: Path | None
    otlp_endpoint: str | None
    egress: Egress
    misspelt: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """Raises ConfigurationError with every fault. Looks into no file but POD_HOST_RUNTIME_CA's: the rest is for whoever
        uses it."""
        reader = _Reader(environ)
        settings = cls(
            sandbox_id=reader.required("NYLORUN_SANDBOX_ID", _sandbox_id, ""),
            pod_uid=reader.required("NYLORUN_POD_UID", _pod_uid, ""),
            join_file=reader.required("NYLORUN_SANDBOX_JOIN_FILE", _absolute, Path("/")),
            harness_url=reader.required("NYLORUN_HARNESS_URL", _url_without_path, ""),
            gates_url=reader.required("NYLORUN_GATES_URL", _url, ""),
            egress_proxy=reader.optional("NYLORUN_EGRESS_PROXY", _url_without_path, None),
            probes=reader.optional("NYLORUN_SANDBOX_BLOCKED_PROBE", _probes, ()) or (reader.api_server(),),
            harness_id=reader.optional("POD_HOST_HARNESS_ID", _harness_id, "pod-host"),
            harness_dir=reader.harness_dir(),
            workspace_dir=reader.optional("POD_HOST_WORKSPACE_DIR", _absolute, Path("/workspace")),
            skills_dir=reader.optional("POD_HOST_SKILLS_DIR", _absolute, Path("/skills")),
            network_gate=reader.optional("POD_HOST_NETWORK_GATE", _switch, True),
            renew_seconds=reader.optional("POD_HOST_RENEW_SECONDS", _seconds, limits.RENEW_SECONDS),
            slots=reader.optional("POD_HOST_SLOTS", _whole, limits.SLOTS),
            shells_ahead=reader.optional("POD_HOST_SHELLS_AHEAD", _shells, limits.SHELLS_AHEAD),
            sandbox_uid=reader.optional("POD_HOST_SANDBOX_UID", _uid, limits.SANDBOX_UID),
            drain_seconds=reader.optional("POD_HOST_DRAIN_SECONDS", _seconds, limits.DRAIN_SECONDS),
            runtime_ca=reader.optional("POD_HOST_RUNTIME_CA", _roots, None),
            log_level=reader.optional("POD_HOST_LOG_LEVEL", _log_level, "info"),
            log_format=reader.optional("POD_HOST_LOG_FORMAT", _log_format, None),
            required_confinement=reader.optional("POD_HOST_CONFINEMENT", _confinement, frozenset()),
            otlp_endpoint=reader.optional("OTEL_EXPORTER_OTLP_ENDPOINT", _url, None),
            egress=reader.optional("POD_HOST_EGRESS", _egress, "direct"),
            in_cluster=bool(environ.get("KUBERNETES_SERVICE_HOST", "").strip()),
            home=_home(environ.get("HOME", "")),
            misspelt=reader.misspelt(),
        )
        if settings.egress == "relay" and (settings.egress_proxy or "").lower().startswith("https:"):
            reader.faults.append("POD_HOST_EGRESS is 'relay'; the relay reaches an http NYLORUN_EGRESS_PROXY alone")
        reader.faults += _within_reach(settings)
        if reader.faults:
            raise ConfigurationError(reader.faults)
        return settings

    @property
    def speaks_tls(self) -> bool:
        """Whether any URL of the Runtime is https."""
        return any(url.lower().startswith("https:") for url in (self.harness_url, self.gates_url))

    @property
    def harness_address(self) -> Address:
        """Where the Harness API listens."""
        parts = urlsplit(self.harness_url)
        return Address(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def harness_dir(environ: Mapping[str, str]) -> Path:
    """Of the host that is started in this environment. Raises ConfigurationError."""
    reader = _Reader(environ)
    directory = reader.harness_dir()
    if reader.faults:
        raise ConfigurationError(reader.faults)
    return directory


class _Fault(Exception):
    """How to mend one value, in words."""


class _Reader:
    """Reads one variable after another and collects what is wrong. An empty value counts as unset."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._known: set[str] = set()
        self.faults: list[str] = []

    def required(self, name: str, parse: Callable[[str], Value], placeholder: Value) -> Value:
        if not self._environ.get(name, "").strip():
            self.faults.append(f"{name} is not set; the Runtime sets it in a pod's environment")
            return placeholder
        return self.optional(name, parse, placeholder)

    def optional(self, name: str, parse: Callable[[str], Value], default: Value) -> Value:
        self._known.add(name)
        text = self._environ.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except _Fault as fault:
            self.faults.append(f"{name} is {_shown(text)}; {fault}")
            return default

    def harness_dir(self) -> Path:
        root = self.optional("NYLORUN_HARNESS_ROOT", _absolute, Path("/harness"))
        return self.optional("POD_HOST_HARNESS_DIR", _absolute, root)

    def misspelt(self) -> tuple[str, ...]:
        """To be called when all are read. No faults: a Service whose name begins like ours puts variables there, too."""
        found: list[str] = []
        for name in sorted(self._environ):
            if name.startswith(_PREFIXES) and name not in self._known and not _OF_A_SERVICE.search(name):
                import difflib  # hardly ever needed

                for meant in difflib.get_close_matches(name, self._known, 1, _ALIKE):
                    found.append(f"{name} is no setting; did you mean {meant}?")
        return tuple(found)

    def api_server(self) -> Address:
        """What no pod of a sandbox may reach: the cluster's API server, as the kubelet names it."""
        host = self._environ.get("KUBERNETES_SERVICE_HOST", "").strip() or "10.96.0.1"
        return Address(host, self.optional("KUBERNETES_SERVICE_PORT", _port, 443))


def _within_reach(settings: Settings) -> list[str]:
    """What must be kept from commands cannot lie where they make files: the kernel would open the one or close the other."""
    hidden = {"the join file": settings.join_file, "the host's own directory": settings.harness_dir}
    open_to_commands = {"POD_HOST_WORKSPACE_DIR": settings.workspace_dir, "POD_HOST_SKILLS_DIR": settings.skills_dir}
    return [
        f"{name} is {_shown(str(around))}; {what} is {_shown(str(path))}, and must lie outside of it"
        for name, around in open_to_commands.items()
        for what, path in hidden.items()
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(around))
    ]


def _shown(text: str) -> str:
    """The value for people: a password in a URL is left out, and so is the end of a long one."""
    text = re.sub(r"//.*@", "//…@", text)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


def _sandbox_id(text: str) -> str:
    if len(text) > _ID_CHARACTERS:
        raise _Fault(f"an id has at most {_ID_CHARACTERS} characters")
    return text


def _pod_uid(text: str) -> str:
    if not _POD_UID.fullmatch(text):
        raise _Fault("a pod's UID has 1 to 64 letters, digits and hyphens")
    return text


def _harness_id(text: str) -> str:
    if not _HARNESS_ID.fullmatch(text):
        raise _Fault("a harness id is a small letter and 1 to 62 small letters, digits or hyphens, as the manifest's")
    return text


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise _Fault("an absolute path is needed")
    return path


def _roots(text: str) -> Path:
    path = _absolute(text)
    try:
        pem = path.read_bytes()
    except OSError as fault:
        raise _Fault(f"it cannot be read: {fault.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise _Fault("it holds no certificate in PEM form")
    return path


def _home(text: str) -> Path | None:
    """HOME is not ours to judge: what is no absolute path counts as none."""
    return Path(text) if text.startswith("/") and "\0" not in text else None


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # its text may hold what the URL holds
        raise _Fault("a URL such as http://10.0.0.1:4200 is needed; this is none") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _Fault("a URL such as http://10.0.0.1:4200 is needed, http or https")
    if parts.username is not None or parts.password is not None:
        raise _Fault("leave the user and the password out of the URL")
    if parts.query or parts.fragment:
        raise _Fault("leave what follows ? or # out of the URL")
    return parts


def _url(text: str) -> str:
    _split(text)
    return text.rstrip("/")


def _url_without_path(text: str) -> str:
    if _split(text).path not in ("", "/"):
        raise _Fault("leave the path out: scheme, host and port are all of it")
    return text.rstrip("/")


def _probes(text: str) -> tuple[Address, ...]:
    return tuple(_address(part.strip()) for part in text.split(",") if part.strip())


def _address(text: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.netloc != text or "@" in text:
        raise _Fault("a list of host:port with commas is needed, an IPv6 host in brackets: 10.96.0.1:443,[fd00::1]:443")
    return Address(host, port)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise _Fault("on or off is needed")
    return text == "on"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise _Fault("a number of seconds above 0 is needed")
    return seconds


def _within(text: str, least: int, most: int, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise _Fault(f"{what} is needed")
    return int(text)


def _whole(text: str) -> int:
    return _within(text, 1, 1000, "a whole number from 1 to 1000")


def _shells(text: str) -> int:
    return _within(text, 0, limits.SHELLS_AHEAD, f"a whole number from 0 to {limits.SHELLS_AHEAD}")


def _port(text: str) -> int:
    return _within(text, 1, 65535, "a port from 1 to 65535")


def _uid(text: str) -> int:
    return _within(text, 1, _UID_MOST, "a user id above 0 (commands never run as root)")


def _log_level(text: str) -> LogLevel:
    match text:
        case "debug" | "info" | "warning" | "error":
            return text
    raise _Fault("debug, info, warning or error is needed")


def _log_format(text: str) -> LogFormat | None:
    match text:
        case "json" | "text":
            return text
    raise _Fault("json or text is needed")


def _egress(text: str) -> Egress:
    match text:
        case "direct" | "relay":
            return text
    raise _Fault("direct or relay is needed")


def _confinement(text: str) -> frozenset[str]:
    word, colon, names = text.partition(":")
    wanted = frozenset(name.strip() for name in names.split(",")) if colon else frozenset(PROTECTIONS)
    if word != "require" or not wanted <= frozenset(PROTECTIONS):
        raise _Fault(
            f"require, or require: with some of {', '.join(PROTECTIONS)}, is needed; empty: what the kernel has"
        )
    return wanted
