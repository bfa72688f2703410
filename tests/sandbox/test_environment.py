"""The environment of a command, layer by layer, and that programs in it wait for no person."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from pod_host.sandbox import ClientFiles, command_environment
from tests.sandbox.conftest import Box

PROXY = "http://nylorun:ey.J-_x.y@egress:8080"
FILES = ClientFiles(Path("/h/wgetrc"), Path("/h/apt.conf"), Path("/h/node.cjs"), Path("/h/java roots.jks"))


def build(
    base: Mapping[str, str] = {},
    session: Mapping[str, str] = {},
    proxy: str | None = None,
    trust: Path | None = None,
    traceparent: str | None = None,
    files: ClientFiles | None = None,
) -> dict[str, str]:
    return command_environment(
        base=base,
        home=Path("/h/home"),
        session=session,
        proxy=proxy,
        trust_bundle=trust,
        traceparent=traceparent,
        client_files=files,
    )


def git_settings(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    count = int(environment["GIT_CONFIG_COUNT"])
    return [(environment[f"GIT_CONFIG_KEY_{n}"], environment[f"GIT_CONFIG_VALUE_{n}"]) for n in range(count)]


def test_the_containers_own_variables_pass_and_the_hosts_do_not() -> None:
    base = {
        "PATH": "/opt/bin:/bin", "TZ": "Europe/Vienna", "LC_ALL": "C", "JAVA_HOME": "/opt/java", "VIRTUAL_ENV": "/v",
        "NYLORUN_SANDBOX_ID": "s", "nylorun_x": "s", "POD_HOST_SLOTS": "8", "HTTPS_PROXY": "p", "all_proxy": "p",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s",
        "No_Proxy": "p", "FTP_PROXY": "p", "SSH_AUTH_SOCK": "/a", "PWD": "/", "HOME": "/root", "TERM": "xterm",
    }  # fmt: skip
    environment = build(base)
    for name in ("PATH", "TZ", "LC_ALL", "JAVA_HOME", "VIRTUAL_ENV"):
        assert environment[name] == base[name]
    assert not [name for name in environment if name.upper().startswith(("NYLORUN", "POD_HOST", "OTEL_"))]
    assert not [name for name in environment if name.upper().endswith("_PROXY")]
    assert "SSH_AUTH_SOCK" not in environment
    assert "PWD" not in environment
    assert (environment["HOME"], environment["TERM"]) == ("/h/home", "dumb")


def test_defaults_stand_in_for_what_the_container_lacks() -> None:
    environment = build()
    assert environment["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert environment["LANG"] == "C.UTF-8"


def test_the_session_wins_over_comfort_and_container_and_loses_to_proxy_and_trust() -> None:
    session = {
        "GIT_EDITOR": "vim", "HOME": "/elsewhere", "PATH": "/mine", "https_proxy": "mine", "SSL_CERT_FILE": "mine",
        "TRACEPARENT": "mine", "API_KEY": "nylorun_managed",
    }  # fmt: skip
    environment = build({"PATH": "/theirs"}, session, PROXY, Path("/h/ca.pem"), "00-trace")
    for name in ("GIT_EDITOR", "HOME", "PATH", "API_KEY"):
        assert environment[name] == session[name]
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        assert environment[name] == PROXY
    assert environment["NO_PROXY"] == environment["no_proxy"] == "localhost,127.0.0.1"
    assert environment["NODE_USE_ENV_PROXY"] == "1"
    assert "ALL_PROXY" not in environment
    trust = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
    for name in (*trust, "AWS_CA_BUNDLE", "PIP_CERT", "CARGO_HTTP_CAINFO"):
        assert environment[name] == "/h/ca.pem"
    assert environment["TRACEPARENT"] == "00-trace"


def test_without_proxy_and_bundle_their_variables_are_absent() -> None:
    environment = build()
    names = ("HTTPS_PROXY", "no_proxy", "NODE_USE_ENV_PROXY", "SSL_CERT_FILE", "PIP_CERT", "TRACEPARENT")
    assert not [name for name in names if name in environment]


def test_clients_that_read_no_variable_are_told_by_files_that_variables_name() -> None:
    environment = build(trust=Path("/h/ca.pem"), proxy=PROXY, files=FILES)
    assert environment["npm_config_cafile"] == "/h/ca.pem"
    assert (environment["WGETRC"], environment["APT_CONFIG"]) == ("/h/wgetrc", "/h/apt.conf")
    assert environment["NODE_OPTIONS"] == "--require /h/node.cjs"
    assert "JAVA_TOOL_OPTIONS" not in environment  # it could not authenticate


def test_java_is_told_of_a_proxy_without_credentials() -> None:
    environment = build(proxy="http://127.0.0.1:4321", files=FILES, session={"JAVA_TOOL_OPTIONS": "-Dmine=1"})
    assert environment["JAVA_TOOL_OPTIONS"] == (
        "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=4321 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=4321 "
        '-Dhttp.nonProxyHosts=localhost|127.0.0.1 -Djavax.net.ssl.trustStore="/h/java roots.jks" '
        "-Djavax.net.ssl.trustStoreType=JKS -Dmine=1"
    )


def test_files_and_options_that_others_brought_stay() -> None:
    base = {"WGETRC": "/theirs", "APT_CONFIG": "/theirs", "NODE_OPTIONS": "--max-old-space-size=99"}
    environment = build(base, proxy=PROXY, files=FILES)
    assert (environment["WGETRC"], environment["APT_CONFIG"]) == ("/theirs", "/theirs")
    assert environment["NODE_OPTIONS"] == "--require /h/node.cjs --max-old-space-size=99"
    assert "NODE_OPTIONS" not in build(files=FILES)


def test_git_gets_credentials_that_it_decodes_twice_and_keeps_what_others_set() -> None:
    safe = ("safe.directory", "*")
    assert git_settings(build(proxy=PROXY)) == [safe]
    proxy = "http://nylorun:a%25b%2F@[fd00::1]:8080"
    assert git_settings(build(proxy=proxy)) == [safe, ("http.proxy", "http://nylorun:a%2525b%252F@[fd00::1]:8080")]
    theirs = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "x"}
    assert git_settings(build(session=theirs)) == [("user.name", "x"), safe]
    assert build(session={"GIT_CONFIG_COUNT": "x"})["GIT_CONFIG_COUNT"] == "x"


WAITERS = {
    "a commit without a message": ("git commit --allow-empty", {1}),
    "an interactive rebase": ("git rebase -i HEAD~1", {0}),
    "a pager": ("git log", {0}),
    "a clone that asks for a password": ("git -c http.proxy= clone https://127.0.0.1:1/x.git", {128}),
    "an editor": ("$EDITOR file", {0}),
    "a password": ("su root -c true || ssh -o ConnectTimeout=1 -p 1 127.0.0.1", {1, 127, 255}),
}


@pytest.mark.parametrize("what", WAITERS)
async def test_nothing_waits_for_a_person(box: Box, what: str) -> None:
    await box.bash("git init -q . && git commit -q --allow-empty -m 1 && git commit -q --allow-empty -m 2")
    command, codes = WAITERS[what]
    output = await box.bash(command, timeout=30)
    assert "timedOut" not in output
    assert output["exitCode"] in codes, output


async def test_a_conflict_is_resolved_and_the_rebase_goes_on_without_an_editor(box: Box) -> None:
    output = await box.bash(
        "set -e; git init -q -b main .; echo 1 > f; git add f; git commit -qm 1; git checkout -qb side; echo 2 > f; "
        "git commit -qam 2; git checkout -q main; echo 3 > f; git commit -qam 3; git checkout -q side; "
        "git rebase main >/dev/null 2>&1 || true; echo 23 > f; git add f; git rebase --continue >/dev/null 2>&1; "
        "git log --format=%s | tr '\\n' ' '"
    )
    assert output["stdout"] == "2 3 1 "


async def test_the_default_author_gives_way_to_the_users_own(box: Box) -> None:
    author = "git commit -q --allow-empty -m x && git log -1 --format=%an"
    assert (await box.bash(f"git init -q . && {author}"))["stdout"] == "Agent\n"
    assert (await box.bash(f"git config --global user.name Globe && {author}"))["stdout"] == "Globe\n"
    assert (await box.bash(f"git config user.name Local && {author}"))["stdout"] == "Local\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
async def test_git_works_in_a_repository_of_another_user(box: Box) -> None:
    await box.bash("git init -q theirs && cd theirs && git commit -q --allow-empty -m x && chmod -R a+rwX .")
    for directory, _, names in os.walk(box.workspace / "theirs"):
        for name in [".", *names]:
            os.chown(os.path.join(directory, name), 4321, 4321)
    output = await box.bash("cd theirs && git log --format=%s && git commit -q --allow-empty -m y && echo ok")
    assert output["stdout"] == "x\nok\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
async def test_a_user_without_an_entry_in_the_password_file_can_commit(make_box: object, open_directory: Path) -> None:
    assert callable(make_box)
    box: Box = await make_box(uid=54321)
    output = await box.bash("id -u; git init -q . && git commit -q --allow-empty -m x && git log --format=%an")
    assert output["stdout"] == "54321\nAgent\n", output


@pytest.mark.skipif(not shutil.which("npx"), reason="no npx here")
async def test_npx_does_not_ask_to_install(box: Box) -> None:
    box.environment = {**box.environment, "npm_config_registry": "http://127.0.0.1:1", "npm_config_fetch_retries": "0"}
    output = await box.bash("npx no-such-package-of-ours", timeout=60)
    assert "timedOut" not in output
    assert output["exitCode"] != 0
