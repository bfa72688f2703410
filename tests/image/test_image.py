"""What is in the image, and what is not."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.image.machine import BASE, HOST, RUNTIME, Machine

MB = 1000 * 1000
VENV = "opt/pod-host"
AGAIN = "localhost/pod-host-test-again:dev"


@contextmanager
def mounted(machine: Machine, tag: str) -> Iterator[Path]:
    """The image's whole file system, to read."""
    at = Path(machine.podman("image", "mount", tag).strip())
    try:
        yield at
    finally:
        machine.podman("image", "unmount", tag)


def size(root: Path) -> int:
    """Bytes of all files, those with several names once."""
    seen: dict[tuple[int, int], int] = {}
    for path in root.rglob("*"):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            seen[found.st_dev, found.st_ino] = found.st_size
    return sum(seen.values())


def listing(root: Path) -> dict[str, str]:
    """Each path with its kind, mode, owner and content."""
    told = {}
    for path in sorted(root.rglob("*")):
        found = path.lstat()
        what = ""
        if path.is_symlink():
            what = str(path.readlink())
        elif path.is_file():
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        told[str(path.relative_to(root))] = f"{found.st_mode:o} {found.st_uid}:{found.st_gid} {what}"
    return told


def site_packages(root: Path) -> Path:
    (found,) = (root / VENV / "lib").glob("python3.*/site-packages")
    return found


def run(machine: Machine, *command: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """In a container as a pod's: read-only, no capability, no network."""
    return machine.outcome(
        *machine.podman_command(
            *("run", "--rm", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=none"),
            *("--tmpfs=/tmp:rw,mode=1777", *options, HOST, *command),
        )
    )


def sh(machine: Machine, script: str) -> str:
    code, out, err = run(machine, script, options=("--entrypoint", '["/bin/bash", "-c"]'))
    assert code == 0, out + err
    return out


def test_it_adds_little_to_its_base(images: Machine) -> None:
    with mounted(images, BASE) as base, mounted(images, HOST) as image:
        added, ours = size(image) - size(base), size(image / VENV)
    print(f"added {added / MB:.0f} MB, of which {ours / MB:.0f} are pod_host and its Python packages")
    assert added <= 150 * MB
    assert ours <= 50 * MB


def test_two_builds_of_one_base_are_the_same(images: Machine) -> None:
    images.build_product(AGAIN, "pod-host", "--no-cache")
    with mounted(images, HOST) as first, mounted(images, AGAIN) as second:
        one, other = listing(first), listing(second)
    images.podman("rmi", AGAIN)
    assert {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)} == set()


def test_nothing_is_left_of_the_build(images: Machine) -> None:
    with mounted(images, HOST) as image:
        files = [path for path in image.rglob("*") if path.is_file() and not path.is_symlink()]
        site = site_packages(image)
        names = {path.name.split("-")[0].lower() for path in site.glob("*.dist-info")}
        for directory in ("var/cache", "var/log", "var/lib/apt/lists", "tmp", "var/tmp", "root/.cache"):
            assert [path for path in files if path.is_relative_to(image / directory)] == []
        assert [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
        programs = {path.name for path in image.glob("usr/bin/*")} | {
            path.name for path in image.glob("usr/local/bin/*")
        }
        assert programs & {"cc", "gcc", "c++", "make", "as", "ld", "pip", "pip3"} == set()
        assert names & {"pip", "setuptools", "pytest", "aiohttp", "anthropic", "openai", "hatchling"} == set()
        assert [path for path in site.rglob("*") if path.is_dir() and path.name in ("test", "tests")] == []
        # The roots that the build was given, where TLS is intercepted, are not the image's.
        with mounted(images, BASE) as base:
            bundle = "etc/ssl/certs/ca-certificates.crt"
            assert (image / bundle).read_bytes() == (base / bundle).read_bytes()


def test_every_module_is_compiled_and_never_checked_again(images: Machine) -> None:
    with mounted(images, HOST) as image:
        site = site_packages(image)
        modules = list(site.rglob("*.py"))
        compiled = list(site.rglob("*.pyc"))
        assert len(compiled) == len(modules) > 500
        assert {path.read_bytes()[4:8] for path in compiled} == {b"\1\0\0\0"}  # by hash, unchecked


def test_it_runs_as_its_user_with_what_commands_need(images: Machine) -> None:
    config = images.image(HOST)["Config"]
    assert config["User"] == "1000:1000"
    assert config["Entrypoint"][0] == "/usr/bin/tini"
    assert "Cmd" not in config
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "pod-host"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert set(labels) >= {f"org.opencontainers.image.{name}" for name in ("description", "version", "revision")}
    told = sh(
        images,
        "id; echo $HOME; getent passwd 1000; pod-host --version; for program in bash curl git ps rg python3; do"
        " command -v $program && $program --version | head -n 1; done; cat /proc/1/comm; locale charmap;"
        " localedef --list-archive",
    )
    assert "uid=1000(agent) gid=1000(agent)" in told
    assert "agent:x:1000:1000::/harness/home:/bin/bash" in told
    assert "/harness/home\n" in told
    assert "pod-host 0." in told
    assert "UTF-8\nC.utf8\n" in told  # the locale, in the one file that every program looks into first
    for program in ("ripgrep", "git version", "curl ", "GNU bash", "procps", "Python 3."):
        assert program in told
    assert "/opt" not in sh(images, "command -v python3")  # a model's python3 is the system's, not the host's


def test_its_bill_of_materials_names_what_is_in_it(images: Machine) -> None:
    with mounted(images, HOST) as image:
        document = json.loads((image / VENV / "sbom.cdx.json").read_text())
        site = site_packages(image)
        python = {path.name.removesuffix(".dist-info").lower() for path in site.glob("*.dist-info")}
        debian = (image / "var/lib/dpkg/status").read_text().count("\nStatus: install ok installed")
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    components = document["components"]
    purls = [component["purl"] for component in components]
    assert len(set(purls)) == len(purls)
    assert sum(purl.startswith("pkg:deb/") for purl in purls) == debian
    listed = [component for component in components if component["purl"].startswith("pkg:pypi/")]
    assert {f"{one['name'].lower().replace('-', '_')}-{one['version']}" for one in listed} == python
    assert {"pod-host", "websockets", "orjson"} <= {component["name"] for component in listed}


def test_what_is_wrong_with_its_environment_is_said_and_ends_it(images: Machine) -> None:
    code, _, told = run(images, options=("--volume=/harness", "--volume=/workspace"))
    assert code == 78
    lines = told.splitlines()
    assert [line for line in lines if "NYLORUN_SANDBOX_ID is not set" in line]
    assert [line for line in lines if "NYLORUN_HARNESS_URL is not set" in line]
    code, _, told = run(images)
    assert code == 78
    assert "POD_HOST_HARNESS_DIR: /harness is not writable for uid 1000" in told


def test_dev_says_that_the_image_has_no_embedded_runtime(images: Machine) -> None:
    code, _, told = run(images, "pod-host dev", options=("--entrypoint", '["/bin/bash", "-c"]'))
    assert code == 1
    assert "dev needs the extra" in told


def test_the_embedded_runtimes_image_runs_as_its_user_too(images: Machine) -> None:
    config = images.image(RUNTIME)["Config"]
    assert config["User"] == "1000:1000"
    assert config["Entrypoint"][-2:] == ["-m", "pod_host.dev"]


@pytest.mark.parametrize("word", ["aiohttp", "anthropic"])
def test_the_extra_is_in_the_embedded_runtimes_image_alone(images: Machine, word: str) -> None:
    with mounted(images, RUNTIME) as image:
        assert (site_packages(image) / word).is_dir()
