"""Every manifest against Kubernetes' schemas, agent-sandbox's fields, and what neither says."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from tests.image.checks import faults, pod_specs
from tests.image.render import K8S as DIRECTORY
from tests.image.render import KUBECTL, OVERLAYS, Document, by_hand, by_kubectl, key, one, render

SCHEMAS = Path(__file__).parent / "schemas"
RUNTIME = "192.0.2.1"


def newest_versions() -> list[str]:
    """The three newest minor versions of Kubernetes whose schemas are at hand."""
    told = subprocess.run(
        [sys.executable, "-c", "import kubernetes_validate as k; print(*k.utils.all_versions())"],
        check=True,
        capture_output=True,
        text=True,
    )
    minors = [version.rsplit(".", 1)[0] for version in told.stdout.split()]
    return list(dict.fromkeys(minors))[-3:]


def validate(documents: list[Document], version: str, directory: Path) -> subprocess.CompletedProcess[str]:
    file = directory / "documents.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def kubernetes_own(document: Document) -> list[Document]:
    """The document, or, of one that is agent-sandbox's, the Pod and the claims that it would become."""
    if "agents.x-k8s.io" not in document["apiVersion"]:
        return [document]
    spec = document["spec"]
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod} for pod in pod_specs(document)]
    claims = [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x"}, "spec": claim["spec"]}
        for claim in spec.get("volumeClaimTemplates", ())
    ]
    return [*pods, *claims]


def env(container: Document) -> dict[str, Any]:
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


@pytest.mark.parametrize("version", newest_versions())
def test_every_document_passes_kubernetes_schemas(version: str, tmp_path: Path) -> None:
    documents = [own for overlay in OVERLAYS for document in render(overlay) for own in kubernetes_own(document)]
    told = validate(documents, version, tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("passed") == len(documents)


def test_the_validator_finds_a_misspelt_field(tmp_path: Path) -> None:
    pod = deepcopy(one(render("base"), "Pod"))
    pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    assert validate([pod], newest_versions()[-1], tmp_path).returncode != 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_wrong_that_the_schemas_do_not_say(overlay: str) -> None:
    assert faults(render(overlay)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.egress.0.to.0.ipBlock.cidr", "192.0.2.1/24"),
        ("spec.egress.0.to.0.ipBlock.cidr", "192.0.2.300/32"),
        ("spec.egress.0.ports.0.port", 0),
        ("spec.egress.0.ports.0.port", 65536),
        ("spec.egress.0.ports.0.protocol", "tcp"),
        ("spec.policyTypes", ["Egres"]),
        ("spec.containers.0.resources.limits.memory", "1024MiB"),
        ("spec.containers.0.resources.requests.memory", "2Gi"),
        ("spec.securityContext.seccompProfile.type", "Default"),
        ("spec.containers.0.volumeMounts.0.name", "dta"),
        ("spec.containers.0.volumeMounts.0.mountPath", "workspace"),
        ("spec.containers.0.env.1.valueFrom.fieldRef.fieldPath", "metadata.uuid"),
        ("spec.volumes.3.secret.secretName", "another"),
        ("spec.volumes.3.secret.defaultMode", 440),
        ("spec.restartPolicy", "always"),
        ("spec.accessModes", ["RWO"]),
        ("metadata.name", "Sandbox_1"),
    ],
)
def test_the_checks_find_what_they_are_for(path: str, value: object) -> None:
    kinds = {"egress": "NetworkPolicy", "policyTypes": "NetworkPolicy", "accessModes": "PersistentVolumeClaim"}
    documents = deepcopy(render("base"))
    at: Any = one(documents, kinds.get(path.split(".")[1], "Pod"))
    *parents, last = path.split(".")
    for part in parents:
        at = at[int(part)] if part.isdigit() else at[part]
    at[last] = value
    assert faults(documents)


@pytest.mark.parametrize("document", render("agent-sandbox"), ids=lambda document: document["kind"])
def test_agent_sandbox_documents_use_its_fields_alone(document: Document) -> None:
    if "agents.x-k8s.io" in document["apiVersion"]:
        schema = json.loads((SCHEMAS / f"{document['kind']}.json").read_text())
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(document)


def test_the_pod_is_the_one_that_the_runtime_makes() -> None:
    pod = one(render("base"), "Pod")
    spec = deepcopy(pod["spec"])
    (container,) = spec.pop("containers")
    volumes = {volume.pop("name"): volume for volume in spec.pop("volumes")}
    name = pod["metadata"]["name"]
    assert spec == {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    assert set(container) == {
        "name", "image", "workingDir", "env", "securityContext", "resources", "volumeMounts"
    }  # fmt: skip
    assert (container["name"], container["workingDir"]) == ("workload", "/workspace")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"cpu": "1000m", "memory": "1024Mi"},
    }
    assert container["volumeMounts"] == [
        {"name": "data", "mountPath": "/workspace", "subPath": "workspace"},
        {"name": "data", "mountPath": "/harness", "subPath": "harness"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "skills", "mountPath": "/skills"},
        {"name": "join", "mountPath": "/run/nylorun/join", "readOnly": True},
    ]
    assert volumes == {
        "data": {"persistentVolumeClaim": {"claimName": f"data-{name}"}},
        "tmp": {"emptyDir": {}},
        "skills": {"emptyDir": {}},
        "join": {"secret": {"secretName": f"{name}-join", "defaultMode": 0o440, "optional": True}},
    }
    assert env(container) == {
        "HOME": "/harness/home",
        "NYLORUN_POD_UID": {"fieldRef": {"fieldPath": "metadata.uid"}},
        "NYLORUN_SANDBOX_KIND": "pod",
        "NYLORUN_SANDBOX_JOIN_FILE": "/run/nylorun/join/token",
        "NYLORUN_HARNESS_URL": f"http://{RUNTIME}:4200",
        "NYLORUN_GATES_URL": f"http://{RUNTIME}:4100",
        "NYLORUN_EGRESS_PROXY": f"http://{RUNTIME}:4400",
        "NYLORUN_HARNESS_ROOT": "/harness",
        "NYLORUN_SANDBOX_ID": "pod-host-dev",
    }


def test_the_policy_opens_what_the_pod_is_told_of_and_nothing_else() -> None:
    documents = render("base")
    policy = one(documents, "NetworkPolicy")["spec"]
    (rule,) = policy["egress"]
    told = env(one(documents, "Pod")["spec"]["containers"][0])
    urls = [urlsplit(told[name]) for name in ("NYLORUN_HARNESS_URL", "NYLORUN_GATES_URL", "NYLORUN_EGRESS_PROXY")]
    assert policy["podSelector"] == {}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert rule["to"] == [{"ipBlock": {"cidr": f"{RUNTIME}/32"}}]
    assert [(port["protocol"], port["port"]) for port in rule["ports"]] == [("TCP", url.port) for url in urls]
    assert {url.hostname for url in urls} == {RUNTIME}


def test_the_embedded_runtime_listens_where_the_pod_calls() -> None:
    documents = render("kind")
    policy = one(documents, "NetworkPolicy")["spec"]
    spec = one(documents, "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    pod = env(one(documents, "Pod")["spec"]["containers"][0])
    args = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])
    allowed = [port["port"] for port in policy["egress"][0]["ports"]]
    assert [int(args[f"{name}-port"]) for name in ("harness", "gates", "egress")] == allowed
    assert [port["containerPort"] for port in container["ports"]] == allowed
    assert spec["hostNetwork"] is True
    assert args["host"] == "$(NODE_ADDRESS)"
    assert args["sandbox-id"] == pod["NYLORUN_SANDBOX_ID"]
    tokens = {document["stringData"]["token"] for document in documents if document["kind"] == "Secret"}
    assert len(tokens) == 1


def test_a_sandbox_of_agent_sandbox_has_the_same_pod() -> None:
    base = deepcopy(one(render("base"), "Pod"))
    claim = one(render("base"), "PersistentVolumeClaim")
    sandbox = one(render("agent-sandbox"), "Sandbox")
    base["spec"]["volumes"] = [volume for volume in base["spec"]["volumes"] if volume["name"] != "data"]
    assert sandbox["spec"]["podTemplate"]["spec"] == base["spec"]
    assert sandbox["spec"]["podTemplate"]["metadata"]["labels"] == base["metadata"]["labels"]
    (template,) = sandbox["spec"]["volumeClaimTemplates"]
    assert template["spec"] == claim["spec"]
    assert f"{template['metadata']['name']}-{sandbox['metadata']['name']}" == claim["metadata"]["name"]


def test_a_pod_of_the_warm_pool_differs_in_its_identity_alone() -> None:
    documents = render("agent-sandbox")
    sandbox, template = one(documents, "Sandbox"), one(documents, "SandboxTemplate")
    pool = one(documents, "SandboxWarmPool")
    warm = deepcopy(template["spec"]["podTemplate"]["spec"])
    named = deepcopy(sandbox["spec"]["podTemplate"]["spec"])
    for spec in (warm, named):
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "join"]
        (container,) = spec["containers"]
        container["env"] = [item for item in container["env"] if item["name"] != "NYLORUN_SANDBOX_ID"]
    assert warm == named
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not there to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_rendering_without_kubectl_is_kubectls(overlay: str) -> None:
    ours, theirs = by_hand(DIRECTORY / overlay), by_kubectl(DIRECTORY / overlay)
    assert sorted(ours, key=key) == sorted(theirs, key=key)
