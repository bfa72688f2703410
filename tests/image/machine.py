"""Container tools with a storage of their own: nothing of the machine's images or containers is seen or touched.

IMAGE_TEST_STORAGE names a directory that is kept, so that layers need not be built again; else a temporary one is used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CA_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
BASE: Final = "localhost/pod-host-test-base:1"
HOST: Final = "localhost/pod-host:dev"
RUNTIME: Final = "localhost/pod-host-dev-runtime:dev"
TOOLS: Final = ("buildah", "podman", "runc", "conmon", "mmdebstrap", "nft", "ip", "nsenter", "curl")
_BUILD_SECONDS: Final = 900.0
_CONTAINERS_CONF: Final = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]  # podman's own need CAP_SYS_RESOURCE
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{tmp}"
"""
Value = TypeVar("Value")


class Machine:
    """Commands are run in the storage: podman's own leave files (``oom``) in their working directory."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        storage.mkdir(parents=True, exist_ok=True)
        run = storage / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        conf = storage / "containers.conf"
        conf.write_text(_CONTAINERS_CONF.format(tmp=run / "libpod"))
        self._later: list[subprocess.Popen[bytes]] = []
        self._environment = {**os.environ, "CONTAINERS_CONF": str(conf)}
        # One state of the checkout for all builds, whoever works in it meanwhile.
        self._checkout = storage / "checkout"
        shutil.rmtree(self._checkout, ignore_errors=True)
        ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
        shutil.copytree(REPOSITORY, self._checkout, ignore=ignored)
        shutil.copy(REPOSITORY / ".dockerignore", self._checkout)
        self._storage_options = ["--root", str(storage / "root"), "--runroot", str(run), "--storage-driver", "overlay"]

    def run(self, *command: str, check: bool = True, seconds: float = 60.0, stdin: str | None = None) -> str:
        """The command's stdout. Raises AssertionError with what it said."""
        code, out, err = self.outcome(*command, seconds=seconds, stdin=stdin)
        assert code == 0 or not check, f"{' '.join(command)}: {code}\n{out}\n{err}"
        return out

    def outcome(self, *command: str, seconds: float = 60.0, stdin: str | None = None) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        done = subprocess.run(
            command,
            cwd=self.storage,
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            errors="replace",
        )
        return done.returncode, done.stdout, done.stderr

    def podman_command(self, *arguments: str) -> list[str]:
        return ["podman", *self._storage_options, *arguments]

    def podman(self, *arguments: str, check: bool = True, seconds: float = 60.0) -> str:
        return self.run(*self.podman_command(*arguments), check=check, seconds=seconds)

    def buildah(self, *arguments: str, seconds: float = _BUILD_SECONDS) -> str:
        command, *rest = arguments
        return self.run("buildah", *self._storage_options, command, *rest, seconds=seconds)

    def later(self, *command: str) -> None:
        """Start it; somebody waits for it in the end."""
        self._later.append(
            subprocess.Popen(command, cwd=self.storage, env=self._environment, stdout=subprocess.DEVNULL)
        )

    # --- images ---------------------------------------------------------------------------------------------------------

    def make_base(self) -> None:
        """A Debian of this machine's own package source, without Python: the smallest that the image builds on."""
        if self.podman("images", "--quiet", BASE).strip():
            return
        context = self.storage / "base"
        shutil.rmtree(context, ignore_errors=True)
        context.mkdir()
        self.run(
            *("mmdebstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(context / "base.tar")),
            seconds=_BUILD_SECONDS,
        )
        (context / "Dockerfile").write_text(
            "FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        )
        self.build(context, BASE)
        shutil.rmtree(context)

    def build(self, context: Path, tag: str, *options: str) -> None:
        # Where TLS is intercepted, the build needs the machine's own roots. They do not stay in the image.
        trust = ["--volume", f"{CA_BUNDLE}:{CA_BUNDLE}:ro"] if CA_BUNDLE.exists() else []
        self.buildah("bud", "--layers", "--isolation", "chroot", *trust, *options, "--tag", tag, str(context))

    def build_product(self, tag: str, target: str, *options: str) -> None:
        """The repository's own Dockerfile."""
        self.build(self._checkout, tag, "--build-arg", f"BASE_IMAGE={BASE}", "--target", target, *options)

    def image(self, tag: str) -> Any:
        """What `podman image inspect` says of it."""
        (found,) = json.loads(self.podman("image", "inspect", tag))
        return found

    # --- the end ----------------------------------------------------------------------------------------------------------

    def remove_containers(self) -> None:
        for started in self._later:
            started.wait(60)
        self.podman("pod", "rm", "--all", "--force", "--time", "0", check=False)
        self.podman("rm", "--all", "--force", "--time", "0", check=False)
        self.podman("volume", "prune", "--force", check=False)

    def close(self, *, keep: bool) -> None:
        self.remove_containers()
        if not keep:
            self.podman("rmi", "--all", "--force", check=False)
            for mount in sorted(_mounts_below(self.storage), reverse=True):
                self.run("umount", mount, check=False)
            shutil.rmtree(self.storage, ignore_errors=True)


def _mounts_below(directory: Path) -> list[str]:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [mount for mount in mounts if mount.startswith(f"{directory}/")]


def until(wanted: Callable[[], Value | None], what: str, seconds: float = 60.0) -> Value:
    """What ``wanted`` returns once that is true. It is asked again and again: another program's state tells nobody."""
    ends = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < ends, f"{what} did not come within {seconds:g} s"
        time.sleep(0.1)
    return found


def missing_tools() -> Sequence[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]
