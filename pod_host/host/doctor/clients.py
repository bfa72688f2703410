"""The clients that commands use: which are installed, and whether each gets through the proxy as it is set up here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pod_host.host.doctor.findings import Finding, State
from pod_host.host.doctor.rehearsal import Seen


@dataclass(frozen=True)
class Client:
    """``present``: exits with 0 when it is installed, and prints its version. ``attempt``: asks ``https://$HOST/`` for
    something, in an empty directory; what comes of it does not matter. ``relay``: works by the relay alone."""

    name: str
    present: str
    attempt: str
    relay: bool = False


_CARGO = """mkdir -p src .cargo && : > src/lib.rs
printf '[package]\\nname = "a"\\nversion = "0.1.0"\\n[dependencies]\\nx = { version = "1", registry = "d" }\\n' > Cargo.toml
printf '[registries.d]\\nindex = "sparse+https://%s/"\\n[net]\\nretry = 0\\n' "$HOST" > .cargo/config.toml
cargo fetch || cargo search no-such-thing --index "https://$HOST/index"  # the second: one that knows no sparse registry"""
_APT = """mkdir -p s/lists/partial c/archives/partial e && : > s/status
echo "deb [trusted=yes] https://$HOST/ ./" > e/sources.list
apt-get -o Dir::Etc="$PWD/e" -o Dir::State="$PWD/s" -o Dir::State::status="$PWD/s/status" -o Dir::Cache="$PWD/c" \\
  -o Acquire::Retries=0 update"""
_JAVA = """cat > A.java <<'END'
public class A { public static void main(String[] a) throws Exception { java.net.http.HttpClient.newHttpClient().send(
  java.net.http.HttpRequest.newBuilder(java.net.URI.create("https://" + System.getenv("HOST") + "/")).build(),
  java.net.http.HttpResponse.BodyHandlers.discarding()); } }
END
java A.java"""
_PYTHON = "python3 -c 'import os, {0}; {1}'"

CLIENTS: Final = (
    Client("curl", "curl --version", "curl -sS -m 10 https://$HOST/"),
    Client("wget", "wget --version", "wget -q -O - -T 10 -t 1 https://$HOST/"),
    Client("git", "git --version", "git ls-remote https://$HOST/x.git"),
    Client(
        "pip",
        "python3 -m pip --version",
        "python3 -m pip download -q --no-deps --no-cache-dir --retries 0 --index-url https://$HOST/simple no-such-thing",
    ),
    Client(
        "uv", "uv --version", "echo no-such-thing | uv pip compile -q --no-cache --default-index https://$HOST/simple -"
    ),
    Client(
        "python urllib",
        "python3 --version",
        _PYTHON.format("urllib.request", 'urllib.request.urlopen("https://" + os.environ["HOST"])'),
    ),
    Client(
        "python requests",
        "python3 -c 'import requests; print(requests.__version__)'",
        _PYTHON.format("requests", 'requests.get("https://" + os.environ["HOST"])'),
    ),
    Client(
        "python httpx",
        "python3 -c 'import httpx; print(httpx.__version__)'",
        _PYTHON.format("httpx", 'httpx.get("https://" + os.environ["HOST"])'),
    ),
    Client(
        "npm", "npm --version", "npm view no-such-thing --registry https://$HOST/ --fetch-retries 0 --cache ./cache"
    ),
    Client("node", "node --version", "node -e 'fetch(`https://${process.env.HOST}/`)'"),
    Client(
        "go",
        "go version",
        "export GOPROXY=https://$HOST GONOSUMDB='*' GOFLAGS=-mod=mod GOTOOLCHAIN=local; go mod init a; "
        "go list -m example.org/x@v1.0.0",
    ),
    Client("cargo", "cargo --version", _CARGO),
    Client("apt", "apt-get --version", _APT),
    Client("java", "javac -version 2>/dev/null", _JAVA, relay=True),
)


def version_in(output: str) -> str:
    """The first number that looks like a version, else the first line."""
    found = re.search(r"\d+(\.\d+)+", output)
    return found.group() if found else output.strip().partition("\n")[0]


def verdict(client: Client, version: str | None, seen: Seen, relay: bool) -> Finding:
    """``version`` None: it is not installed. ``relay``: commands go by the relay."""
    if version is None:
        return Finding("clients", client.name, "note", "not installed")
    if client.relay and not relay:
        return Finding("clients", client.name, "warning", f"{version}: works with POD_HOST_EGRESS=relay alone")
    state: State = "ok" if seen.requested else "failure"
    if seen.requested:
        says = "authenticates, and trusts the CA"
    elif seen.authenticated:
        says = "authenticates, but does not trust the CA"
    elif seen.asked:
        says = "uses the proxy, but the token does not arrive whole"
    else:
        says = "does not use the proxy"
    return Finding("clients", client.name, state, f"{version}: {says}")
