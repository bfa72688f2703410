"""What Kubernetes' published schemas do not say of a manifest and its API server would refuse, or nobody would: ports, enums,
CIDRs, quantities, names, and whether what is named is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any, Final

from tests.image.render import Document

_ENUMS: Final = {
    "protocol": {"TCP", "UDP", "SCTP"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "policyTypes": {"Ingress", "Egress"},
    "accessModes": {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"},
    "dnsPolicy": {"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"},
}
_TYPES: Final = {
    "seccompProfile": {"RuntimeDefault", "Localhost", "Unconfined"},
    "strategy": {"Recreate", "RollingUpdate"},
}
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_FIELD_PATH: Final = re.compile(
    r"metadata\.(name|namespace|uid)|metadata\.(annotations|labels)\['[^']+'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
)


def faults(documents: list[Document]) -> list[str]:
    """Each fault with the path to it; none when all is well."""
    found = []
    for document in documents:
        at = f"{document['kind']}/{document['metadata']['name']}"
        if not _NAME.fullmatch(document["metadata"]["name"]):
            found.append(f"{at}: its name")
        found += [f"{at}{fault}" for fault in _walk(document, "")]
        for spec in pod_specs(document):
            found += [f"{at}: {fault}" for fault in _pod(spec)]
            found += [f"{at}: {fault}" for fault in _references(spec, document, documents)]
    return found


def pod_specs(document: Document) -> Iterator[Document]:
    spec = document.get("spec", {})
    if document["kind"] == "Pod":
        yield spec
    for template in ("template", "podTemplate"):
        if template in spec:
            yield spec[template]["spec"]


def _walk(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{at}[{index}]")
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        here = f"{at}.{name}"
        if name in _ENUMS:
            wrong = {str(one) for one in (inner if isinstance(inner, list) else [inner])} - _ENUMS[name]
            if wrong:
                yield f"{here}: {wrong}"
        if name in _TYPES and inner.get("type") not in _TYPES[name]:
            yield f"{here}.type: {inner.get('type')}"
        if name == "cidr":
            yield from _cidr(inner, here)
        if name in ("requests", "limits"):
            yield from (f"{here}.{k}: {q}" for k, q in inner.items() if not _QUANTITY.fullmatch(str(q)))
        if name in ("port", "containerPort", "hostPort", "targetPort"):
            yield from _port(inner, here)
        if name in ("labels", "matchLabels"):
            yield from (f"{here}.{k}: {v}" for k, v in inner.items() if not _LABEL_VALUE.fullmatch(v))
        yield from _walk(inner, here)


def _cidr(text: str, at: str) -> Iterator[str]:
    try:
        ip_network(text)  # strict: no bits beyond the prefix
    except ValueError as fault:
        yield f"{at}: {fault}"


def _port(port: Any, at: str) -> Iterator[str]:
    good = bool(_PORT_NAME.fullmatch(port)) if isinstance(port, str) else isinstance(port, int) and 0 < port < 65536
    if not good:
        yield f"{at}: {port}"


def _pod(spec: Document) -> Iterator[str]:
    claimed = {"data"} if "volumes" in spec else set()  # a Sandbox's claim is given to its pod as a volume of its name
    volumes = {volume["name"] for volume in spec.get("volumes", ())} | claimed
    for container in spec["containers"]:
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        yield from (f"mountPath {path} is relative" for path in paths if not path.startswith("/"))
        yield from (f"mountPath {path} twice" for path in set(paths) if paths.count(path) > 1)
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"no volume {mount['name']}"
            if mount.get("subPath", "x").startswith("/") or ".." in mount.get("subPath", ""):
                yield f"subPath {mount['subPath']}"
        names = [variable["name"] for variable in container.get("env", ())]
        yield from (f"env {name} twice" for name in set(names) if names.count(name) > 1)
        yield from (f"env {name}" for name in names if not _VARIABLE.fullmatch(name))
        for variable in container.get("env", ()):
            if isinstance(variable.get("value", ""), str):
                yield from _field(variable.get("valueFrom", {}))
            else:
                yield f"env {variable['name']} is no text"
        requests, limits = container["resources"].get("requests", {}), container["resources"].get("limits", {})
        for name in requests.keys() & limits.keys():
            pair = requests[name], limits[name]
            if all(_QUANTITY.fullmatch(str(quantity)) for quantity in pair) and _amount(pair[0]) > _amount(pair[1]):
                yield f"{name}: more is requested than allowed"
    for volume in spec.get("volumes", ()):
        sources = set(volume) - {"name"}
        if len(sources) != 1:
            yield f"volume {volume['name']} has {len(sources)} sources"
        for source in sources:
            mode = volume[source].get("defaultMode", 0)
            if mode & ~0o444:  # nothing of these is ever written or run; a decimal 440 has such bits
                yield f"volume {volume['name']}: defaultMode {mode:o}"
            for item in volume[source].get("items", ()):
                yield from _field(item)


def _field(source: Document) -> Iterator[str]:
    path = source.get("fieldRef", {}).get("fieldPath")
    if path is not None and not _FIELD_PATH.fullmatch(path):
        yield f"fieldPath {path}"


def _amount(quantity: str) -> float:
    powers = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
    number = str(quantity).rstrip("mkMGiK")
    return float(number) * powers[str(quantity).removeprefix(number)]


def _references(spec: Document, owner: Document, documents: list[Document]) -> Iterator[str]:
    """Secrets, ConfigMaps and claims that a pod names are in the same namespace, or are optional."""
    namespace = owner["metadata"].get("namespace")
    there = {(d["kind"], d["metadata"]["name"]) for d in documents if d["metadata"].get("namespace") == namespace}
    named = []
    for volume in spec.get("volumes", ()):
        if "secret" in volume:
            named.append(("Secret", volume["secret"]["secretName"]))
        if "configMap" in volume:
            named.append(("ConfigMap", volume["configMap"]["name"]))
        if "persistentVolumeClaim" in volume:
            named.append(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
    yield from (f"no {kind} {name} in {namespace}" for kind, name in named if (kind, name) not in there)
