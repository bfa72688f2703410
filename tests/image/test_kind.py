"""`make kind` against stand-ins for docker, kind and kubectl: none of them runs here. What it asks of them, and what it says
when one is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.image.machine import REPOSITORY
from tests.image.render import one, render

NODE = "172.18.0.2"
BASICS = ("sh", "dirname", "sed", "od", "tr", "awk", "grep", "git", "cat", "tail")
DOCKER = 'echo "docker $*" >>"$LOG"\n'
KIND = 'echo "kind $*" >>"$LOG"\n'
KUBECTL = """\
[ "$1" != --context ] || shift 2
echo "kubectl $*" >>"$LOG"
case "$*" in
  kustomize*) cat "$RENDERED" ;;
  *"get nodes"*) echo "$NODE" ;;
  *"apply -f -"*) cat >"$APPLIED" ;;
  *dev_say_fails*) exit 1 ;;
esac
"""


@pytest.fixture
def bin_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in BASICS:
        found = shutil.which(name)
        assert found
        (directory / name).symlink_to(found)
    for name, body in (("docker", DOCKER), ("kind", KIND), ("kubectl", KUBECTL)):
        (directory / name).write_text(f"#!/bin/sh\n{body}")
        (directory / name).chmod(0o755)
    return directory


def make_kind(bin_directory: Path, message: str = "hello") -> subprocess.CompletedProcess[str]:
    directory = bin_directory.parent
    rendered = directory / "rendered.yaml"
    rendered.write_text(yaml.safe_dump_all(render("kind")))
    environment = {
        "PATH": str(bin_directory),
        "LOG": str(directory / "log"),
        "RENDERED": str(rendered),
        "APPLIED": str(directory / "applied.yaml"),
        "NODE": NODE,
        "MESSAGE": message,
    }
    command = [str(bin_directory / "sh"), str(REPOSITORY / "k8s/kind/up.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_it_goes_from_nothing_to_a_turn(bin_directory: Path) -> None:
    told = make_kind(bin_directory, message='say "hi", it\'s $5')
    assert told.returncode == 0, told.stderr
    log = (bin_directory.parent / "log").read_text().splitlines()
    what = [line for line in log if not line.startswith(("docker info", "kubectl kustomize"))]
    order = [
        "docker build --target pod-host",
        "docker build --target dev-runtime",
        "kind get clusters",
        "kind create cluster --name pod-host",
        "kind load docker-image --name pod-host localhost/pod-host:dev localhost/pod-host-dev-runtime:dev",
        "kubectl -n kube-system rollout status deployment/coredns",
        "kubectl get nodes",
        "kubectl -n nylorun-sbx-dev delete pod",
        "kubectl apply -f -",
        "kubectl -n nylorun-dev-runtime rollout restart deployment/dev-runtime",
        "kubectl -n nylorun-dev-runtime rollout status deployment/dev-runtime",
        "kubectl -n nylorun-sbx-dev wait pod",
        "kubectl exec -n nylorun-dev-runtime deploy/dev-runtime",
    ]
    assert [line[: len(start)] for line, start in zip(what, order, strict=True)] == order
    assert what[-1].endswith('say "hi", it\'s $5')
    assert "make kind-down" in told.stdout


def test_what_it_applies_has_the_nodes_address_and_one_new_token(bin_directory: Path) -> None:
    applied = []
    for _ in range(2):
        assert make_kind(bin_directory).returncode == 0
        applied.append(list(yaml.safe_load_all((bin_directory.parent / "applied.yaml").read_text())))
    for documents in applied:
        assert one(documents, "NetworkPolicy")["spec"]["egress"][0]["to"] == [{"ipBlock": {"cidr": f"{NODE}/32"}}]
        env = {entry["name"]: entry.get("value") for entry in one(documents, "Pod")["spec"]["containers"][0]["env"]}
        assert env["NYLORUN_HARNESS_URL"] == f"http://{NODE}:4200"
    tokens = [
        {document["stringData"]["token"] for document in documents if document["kind"] == "Secret"}
        for documents in applied
    ]
    assert len(tokens[0]) == len(tokens[1]) == 1
    assert tokens[0] != tokens[1]
    assert len(tokens[0].pop()) == 64


def test_a_turn_that_fails_fails_it(bin_directory: Path) -> None:
    told = make_kind(bin_directory, message="dev_say_fails")
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1].startswith("error: the turn did not complete")


@pytest.mark.parametrize("missing", ["docker", "kind", "kubectl"])
def test_a_missing_program_is_named_in_one_line(bin_directory: Path, missing: str) -> None:
    (bin_directory / missing).unlink()
    told = make_kind(bin_directory)
    assert told.returncode == 1
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"error: {missing} was not found; ")


def test_an_engine_that_does_not_answer_is_named_in_one_line(bin_directory: Path) -> None:
    (bin_directory / "docker").write_text("#!/bin/sh\necho 'cannot connect to the daemon' >&2\nexit 1\n")
    told = make_kind(bin_directory)
    (line,) = told.stderr.splitlines()
    assert line.startswith("error: the Docker engine does not answer; ")
