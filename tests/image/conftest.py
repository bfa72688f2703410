"""Tests of the image and the manifests: `make image-test`. A plain run of all tests leaves them out, since they need root,
Debian's container tools and some minutes; naming this directory brings them in."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.machine import HOST, RUNTIME, Machine, missing_tools
from tests.image.network import Network
from tests.image.pod import JoinSecret, Pod, RuntimeContainer, Volume
from tests.image.render import one, render

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = any(HERE.name in argument.split("::")[0].split("/") for argument in config.invocation_params.args)
    return None if named else True


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces and run containers here")
    if missing := missing_tools():
        pytest.skip(f"not installed: {', '.join(missing)}; `make image-test` installs them when it is root")
    kept = os.environ.get("IMAGE_TEST_STORAGE")
    # Not in /tmp, which may be in memory: this takes some GB.
    made = Machine(Path(kept) if kept else Path(tempfile.mkdtemp(prefix="pod-host-image-test-", dir="/var/tmp")))
    try:
        yield made
    finally:
        made.close(keep=bool(kept))


@pytest.fixture(scope="session")
def images(machine: Machine) -> Machine:
    """The machine once both images are built."""
    machine.make_base()
    machine.build_product(HOST, "pod-host")
    machine.build_product(RUNTIME, "dev-runtime")
    return machine


@pytest.fixture(scope="session")
def network(images: Machine) -> Iterator[Network]:
    made = Network(images)
    try:
        made.open()
        yield made
    finally:
        images.remove_containers()
        made.close()


@pytest.fixture(scope="session")
def never_closed(images: Machine, network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A pod whose network has no policy. It is begun with the first cluster, since its test has minutes to wait for it."""
    directory = _open_to_all(tmp_path_factory.mktemp("open"))
    volume, join = Volume(directory / "volume"), JoinSecret(directory / "join", "unused")
    pod = Pod(network, volume, join, machine=images, on="open", restart="Never")
    yield pod
    pod.delete(grace=0)


def _open_to_all(directory: Path) -> Path:
    """uid 1000 comes through here."""
    for above in (directory, *directory.parents[:2]):
        above.chmod(0o755)
    return directory


class Cluster:
    """An embedded Runtime, a volume and a join Secret, and the pods that are started on them. The policy is in force."""

    def __init__(self, machine: Machine, network: Network, directory: Path) -> None:
        self.machine = machine
        self.network = network
        self.directory = directory
        self.policy = one(render("base"), "NetworkPolicy")
        token = secrets.token_urlsafe(32)
        self.runtime_join = JoinSecret(directory / "runtime-join", token)
        self.join = JoinSecret(directory / "join", token)
        self.volume = Volume(directory / "volume")
        self._made: list[Pod | RuntimeContainer] = []
        network.apply(self.policy)

    def runtime(self, *arguments: str, state: str = "state", agent: str | None = None) -> RuntimeContainer:
        """On a state directory of that name. ``agent``: an agent file instead of the manifest's."""
        at = self.directory / state
        made = RuntimeContainer(
            self.network, at, self.runtime_join, machine=self.machine, arguments=arguments, agent=agent
        )
        self._made.append(made)
        return made

    def pod(self, volume: Volume | None = None, join: JoinSecret | None = None, **options: str) -> Pod:
        """``options``: see `Pod`; a name in capitals is a variable of its environment."""
        env = {name: options.pop(name) for name in list(options) if name.isupper()}
        made = Pod(self.network, volume or self.volume, join or self.join, machine=self.machine, env=env, **options)
        self._made.append(made)
        return made

    def close(self) -> None:
        while self._made:
            made = self._made.pop()
            print(f"--- {made.name}\n{made.log()}")  # shown when the test has failed
            made.delete(grace=0)


@pytest.fixture
def cluster(images: Machine, network: Network, never_closed: Pod, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(images, network, _open_to_all(tmp_path))
    try:
        yield made
    finally:
        made.close()
