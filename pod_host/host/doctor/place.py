"""The environment, the join file and the disks: what the host is given, without touching it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pod_host.errors import ConfigurationError, JoinUnavailable, VolumeIdError
from pod_host.host import volume_id
from pod_host.host.credentials import read_join_token
from pod_host.host.doctor.findings import Finding
from pod_host.limits import MIB
from pod_host.settings import Settings

_LEAST_BYTES: Final = 64 * MIB
_FEW_BYTES: Final = 512 * MIB
_FEW_INODES: Final = 10_000
# What stands for a variable that is missing or wrong, so that everything else can still be looked at.
_STAND_INS: Final = {
    "NYLORUN_SANDBOX_ID": "none",
    "NYLORUN_POD_UID": "none",
    "NYLORUN_SANDBOX_JOIN_FILE": "/nonexistent/join/token",
    "NYLORUN_HARNESS_URL": "http://127.0.0.1:1",
    "NYLORUN_GATES_URL": "http://127.0.0.1:1",
    "POD_HOST_WORKSPACE_DIR": "/nonexistent/workspace",
    "POD_HOST_SKILLS_DIR": "/nonexistent/skills",
}


def read_settings(environ: Mapping[str, str]) -> tuple[Settings, frozenset[str], list[Finding]]:
    """The settings, with stand-ins for what is at fault; the names of those variables; and what there is to say."""
    usable = dict(environ)
    at_fault: set[str] = set()
    findings: list[Finding] = []
    while True:
        try:
            settings = Settings.read(usable)
        except ConfigurationError as fault:
            for line in fault.faults:
                name = line.partition(" ")[0]
                at_fault.add(name)
                findings.append(Finding("environment", name, "failure", line.removeprefix(f"{name} ")))
                usable.pop(name, None)
                if name in _STAND_INS:
                    usable[name] = _STAND_INS[name]
        else:
            break
    if not findings:
        findings.append(Finding("environment", "launch contract", "ok", "every variable can be read"))
    findings += [Finding("environment", "misspelt", "warning", line) for line in settings.misspelt]
    if settings.egress_proxy is None:
        says = "NYLORUN_EGRESS_PROXY is empty: commands get no proxy, and in a pod reach nothing"
        findings.append(Finding("environment", "egress", "warning", says))
    else:
        findings.append(Finding("environment", "egress", "note", f"{settings.egress}, to {settings.egress_proxy}"))
    return settings, frozenset(at_fault), findings


def look_at_join_file(settings: Settings) -> list[Finding]:
    try:
        token = read_join_token(settings.join_file)
    except JoinUnavailable as fault:
        return [Finding("join", "token", "failure", str(fault))]
    return [Finding("join", "token", "ok", f"{settings.join_file} holds one, of {len(token)} characters")]


def look_at_disks(settings: Settings, at_fault: frozenset[str]) -> list[Finding]:
    findings = []
    uid = settings.sandbox_uid if os.geteuid() == 0 else os.geteuid()
    places = (
        ("host's directory", "POD_HOST_HARNESS_DIR", settings.harness_dir, None),
        ("workspace", "POD_HOST_WORKSPACE_DIR", settings.workspace_dir, uid),
        ("skills", "POD_HOST_SKILLS_DIR", settings.skills_dir, None),
        ("temporary", "", Path(tempfile.gettempdir()), uid),
    )
    for name, variable, path, user in places:
        if variable not in at_fault:
            findings.append(_look_at_directory(name, path, user))
    findings.append(_look_at_volume_id(settings.harness_dir))
    return findings


def _look_at_directory(name: str, path: Path, user: int | None) -> Finding:
    if not path.is_dir():
        return Finding("disk", name, "failure", f"{path} is no directory; mount the volume there, or name another")
    if user is None or user == os.geteuid():
        try:
            with tempfile.NamedTemporaryFile(dir=path, prefix=".pod-host-doctor-"):
                pass
        except OSError as fault:
            return Finding("disk", name, "failure", f"{path} cannot be written to: {fault.strerror}")
    elif not _may_write(path, user):
        return Finding("disk", name, "failure", f"{path} cannot be written to by uid {user}, which commands have")
    space = os.statvfs(path)
    free, inodes = space.f_bavail * space.f_frsize, space.f_favail
    says = f"{path}: {free // MIB} MiB free"
    if space.f_files and inodes < _FEW_INODES:
        return Finding("disk", name, "warning", f"{says}, and only {inodes} files more")
    if free < _LEAST_BYTES:
        return Finding("disk", name, "failure", says)
    return Finding("disk", name, "warning" if free < _FEW_BYTES else "ok", says)


def _may_write(path: Path, user: int) -> bool:
    """By the mode bits: of a user with no other groups, as commands are."""
    status = path.stat()
    bit = 0o200 if status.st_uid == user else 0o020 if status.st_gid == user else 0o002
    return bool(status.st_mode & bit)


def _look_at_volume_id(harness_dir: Path) -> Finding:
    if not (harness_dir / volume_id.NAME).exists():
        return Finding("disk", "volume id", "note", "none yet: the first join makes it")
    try:
        volume_id.read_or_make(harness_dir)
    except VolumeIdError as fault:
        return Finding("disk", "volume id", "failure", str(fault))
    return Finding("disk", "volume id", "ok", "can be read")
