"""What `kubectl kustomize DIR` gives. Where there is no kubectl, a rendering of our own of the features that k8s/ uses:
`resources`, `namespace`, and strategic-merge `patches` with a target kind."""

from __future__ import annotations

import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

Document = dict[str, Any]

K8S: Final = Path(__file__).resolve().parents[2] / "k8s"
OVERLAYS: Final = ("tenant", "base", "dev-runtime", "kind", "agent-sandbox")
KUBECTL: Final = shutil.which("kubectl")
_CLUSTER_WIDE: Final = ("Namespace",)
_KNOWN: Final = {"apiVersion", "kind", "resources", "namespace", "patches"}
_MERGED_BY_NAME: Final = ("containers", "env", "volumes")


def render(overlay: str) -> list[Document]:
    return by_kubectl(K8S / overlay) if KUBECTL else by_hand(K8S / overlay)


def by_kubectl(directory: Path) -> list[Document]:
    shown = subprocess.run(
        [str(KUBECTL), "kustomize", str(directory)], check=True, capture_output=True, text=True, timeout=60
    )
    return list(yaml.safe_load_all(shown.stdout))


def by_hand(directory: Path) -> list[Document]:
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    unknown = set(kustomization) - _KNOWN
    assert not unknown, f"{directory}: {unknown} is not rendered here"
    documents: list[Document] = []
    for resource in kustomization["resources"]:
        path = directory / resource
        documents += by_hand(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in kustomization.get("patches", ()):
        change = yaml.safe_load((directory / patch["path"]).read_text())
        documents = [
            _merged(document, change) if document["kind"] == patch["target"]["kind"] else document
            for document in documents
        ]
    if "namespace" in kustomization:
        for document in documents:
            if document["kind"] not in _CLUSTER_WIDE:
                document["metadata"]["namespace"] = kustomization["namespace"]
    return documents


def _merged(document: Any, change: Any, field: str = "") -> Any:
    if isinstance(document, dict) and isinstance(change, dict):
        merged = deepcopy(document)
        for name, value in change.items():
            merged[name] = _merged(document.get(name), value, name)
        return merged
    if field in _MERGED_BY_NAME and isinstance(document, list):
        named = {item["name"]: item for item in document}
        return [_merged(named.get(item["name"], {}), item) for item in change] + [
            item for item in document if item["name"] not in {one["name"] for one in change}
        ]
    return deepcopy(change)


def one(documents: list[Document], kind: str) -> Document:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def key(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]
