"""What people fetch with: repositories, packages, modules, crates."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import TOKEN, Site, need


async def test_git_clones_commits_and_pushes(site: Site) -> None:
    need("git")
    await site.good("git", "init", "-q", "--bare", str(site.root / "repositories" / "demo.git"))
    await site.good("git", "clone", "-q", "https://git.test/demo.git", "demo")
    (site.work / "demo" / "data").write_bytes(os.urandom(2_000_000))  # more than git sends in one piece
    await site.good("git", "-C", "demo", "add", ".")
    await site.good("git", "-C", "demo", "-c", "user.name=a", "-c", "user.email=a@test", "commit", "-q", "-m", "first")
    await site.good("git", "-C", "demo", "push", "-q", "origin", "HEAD:refs/heads/main")
    await site.good("git", "clone", "-q", "-b", "main", "https://git.test/demo.git", "again")
    assert (site.work / "again" / "data").read_bytes() == (site.work / "demo" / "data").read_bytes()
    assert set(site.tokens.shown) == {TOKEN}


async def test_git_settings_of_the_session_and_of_the_command_line_hold_too(site: Site) -> None:
    need("git")
    session = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "Mine"}
    assert await site.good("git", "config", "user.name", **session) == "Mine\n"
    assert await site.good("git", "-c", "http.proxy=http://mine", "config", "http.proxy") == "http://mine\n"


async def test_pip_installs_from_an_index(site: Site) -> None:
    await site.good(
        sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--target", "lib",
        "--index-url", "https://pypi.test/simple/", "demo",
    )  # fmt: skip
    assert (site.work / "lib" / "demo.py").exists()


async def test_uv_installs_from_an_index(site: Site) -> None:
    need("uv")
    await site.good(
        "uv", "pip", "install", "-q", "--no-cache", "--python", sys.executable, "--target", "lib",
        "--default-index", "https://pypi.test/simple/", "demo",
    )  # fmt: skip
    assert (site.work / "lib" / "demo.py").exists()


async def test_npm_installs_from_a_registry_whatever_cafile_a_global_npmrc_names(site: Site) -> None:
    need("npm")
    (site.root / "npmrc").write_text(f"cafile={site.root / 'public.pem'}\n")
    (site.work / "package.json").write_text('{"name": "app", "version": "1.0.0"}')
    await site.good(
        "npm", "install", "--no-audit", "--no-fund", "demo",
        npm_config_registry="https://npm.test/", npm_config_globalconfig=str(site.root / "npmrc"),
    )  # fmt: skip
    assert await site.good("node", "-p", "require('demo')") == "42\n"


async def test_go_resolves_and_downloads_a_module(site: Site) -> None:
    need("go")
    (site.work / "go.mod").write_text("module app\n\ngo 1.19\n")
    go = {"GOPROXY": "https://go.test", "GONOSUMDB": "*", "GOFLAGS": "-mod=mod -modcacherw", "GOTOOLCHAIN": "local"}
    await site.good("go", "get", "go.test/demo@latest", **go)
    assert "go.test/demo v1.0.0" in await site.good("go", "list", "-m", "all", **go)


async def test_cargo_resolves_and_fetches_a_crate(site: Site) -> None:
    need("cargo")
    version = re.search(r"1\.(\d+)", await site.good("cargo", "--version", **_toolchains()))
    if version is None or int(version[1]) < 68:
        pytest.skip("cargo before 1.68, as here, knows no sparse registry")
    (site.work / "src").mkdir()
    (site.work / "src" / "lib.rs").write_text("")
    (site.work / "Cargo.toml").write_text(
        '[package]\nname = "app"\nversion = "0.1.0"\n[dependencies]\ndemo = { version = "1", registry = "local" }\n'
    )
    (site.work / ".cargo").mkdir()
    (site.work / ".cargo" / "config.toml").write_text(
        '[registries.local]\nindex = "sparse+https://crates.test/index/"\n'
    )
    await site.good("cargo", "fetch", "-q", **_toolchains())
    assert list((site.root / "harness" / "home" / ".cargo" / "registry" / "src").glob("*/demo-1.0.0/src/lib.rs"))


def _toolchains() -> dict[str, str]:
    """rustup's cargo looks for the real one in HOME, which is the command's own here."""
    at = Path(os.environ.get("RUSTUP_HOME", Path.home() / ".rustup"))
    return {"RUSTUP_HOME": str(at)} if at.is_dir() else {}


async def test_apt_updates_and_downloads_a_package(site: Site) -> None:
    need("apt-get")
    options = apt_options(site, "https://apt.test/debian/")
    await site.good("apt-get", *options, "-q", "update")
    await site.good("apt-get", *options, "-q", "download", "demo")
    assert (site.work / "demo_1.0_all.deb").exists()


def apt_options(site: Site, repository: str) -> list[str]:
    """An apt of its own: nothing of the machine's settings and lists."""
    for name in ("etc", "etc/parts", "state/lists/partial", "cache/archives/partial"):
        (site.root / "apt" / name).mkdir(parents=True, exist_ok=True)
    (site.root / "apt" / "etc" / "sources.list").write_text(f"deb [trusted=yes] {repository} ./\n")
    (site.root / "apt" / "state" / "status").touch()
    shutil.rmtree(site.root / "apt" / "state" / "lists")
    (site.root / "apt" / "state" / "lists" / "partial").mkdir(parents=True)
    at = site.root / "apt"
    settings = {
        "Dir::Etc": at / "etc",
        "Dir::Etc::Parts": at / "etc" / "parts",
        "Dir::Etc::SourceParts": at / "etc" / "parts",
        "Dir::State": at / "state",
        "Dir::State::status": at / "state" / "status",
        "Dir::Cache": at / "cache",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Acquire::Retries": 0,
    }
    return [text for name, value in settings.items() for text in ("-o", f"{name}={value}")]
