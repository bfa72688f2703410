"""Writes a CycloneDX 1.6 SBOM to stdout: Debian's packages, the interpreter, the Python distributions of one environment.

The same input gives the same bytes: the time is SOURCE_DATE_EPOCH, and nothing is random.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

Component = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dpkg-status", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True, help="a site-packages directory")
    options = parser.parse_args()
    python = [of_distribution(found) for found in distributions(path=[str(options.site)])]
    components = [of_interpreter(), *of_dpkg(options.dpkg_status.read_text(encoding="utf-8")), *python]
    components.sort(key=lambda component: str(component["bom-ref"]))
    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "name": "pod-host", "bom-ref": "image"},
        },
        "components": components,
    }
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


def of_dpkg(status: str) -> list[Component]:
    """The installed packages of a dpkg status file."""
    system = platform.freedesktop_os_release()["ID"]  # debian, ubuntu
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if not line.startswith(" ") and ": " in line
        )
        if fields.get("Status") == "install ok installed":
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/{system}/{quote(name)}@{quote(version)}?arch={architecture}"
            found.append(component(name, version, purl))
    return found


def of_distribution(found: Distribution) -> Component:
    name, version = found.metadata["Name"], found.version
    made = component(name, version, f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version)}")
    if "License-Expression" in found.metadata:
        made["licenses"] = [{"expression": found.metadata["License-Expression"]}]
    return made


def of_interpreter() -> Component:
    """The base's own, which may have come without a package."""
    version = platform.python_version()
    return component("python", version, f"pkg:generic/python@{version}")


def component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


if __name__ == "__main__":
    main()
