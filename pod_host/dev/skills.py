"""Skills of an agent file: folders with a SKILL.md, read whole."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from pod_host.contract.base import JsonObject
from pod_host.errors import AgentFileError

SKILL_FILES: Final = 500
SKILL_PATH_CHARACTERS: Final = 512
SKILL_FILE_BYTES: Final = 10 * 1024 * 1024
_FRONTMATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True)
class Skill:
    """``files``: path within the folder, ``/``-separated, to bytes."""

    name: str
    description: str
    files: Mapping[str, bytes]

    def manifest(self) -> JsonObject:
        """As a loop manifest lists it: ``files`` maps each path to ``sha256:<hex>``."""
        hashes = {path: f"sha256:{hashlib.sha256(content).hexdigest()}" for path, content in self.files.items()}
        return {"name": self.name, "description": self.description, "files": hashes}


def read_skill(folder: Path, where: str) -> Skill:
    """Read the folder. ``where`` heads every fault. Raises AgentFileError."""
    if not folder.is_dir():
        raise AgentFileError(f"{where}: {folder} is no folder; name a folder that holds a SKILL.md")
    files: dict[str, bytes] = {}
    for parent, directories, names in os.walk(folder):
        directories.sort()
        for name in sorted(names):
            path = Path(parent, name)
            inner = path.relative_to(folder).as_posix()
            files[inner] = _read_file(path, inner, where)
            if len(files) > SKILL_FILES:
                raise AgentFileError(f"{where}: {folder} holds more than {SKILL_FILES} files; keep to what is needed")
    if "SKILL.md" not in files:
        raise AgentFileError(f"{where}: {folder} has no SKILL.md; add one with a name and a description at its head")
    name, description = _head(files["SKILL.md"], folder, where)
    return Skill(name, description, files)


def _read_file(path: Path, inner: str, where: str) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise AgentFileError(f"{where}: {path} is no ordinary file; put a copy in its place")
    if len(inner) > SKILL_PATH_CHARACTERS or "\\" in inner or not inner.isprintable():
        raise AgentFileError(f"{where}: {inner!r} cannot be a skill's file name; rename it")
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise AgentFileError(f"{where}: {path}: {fault.strerror}") from None
    if len(content) > SKILL_FILE_BYTES:
        raise AgentFileError(f"{where}: {path} has {len(content)} bytes; at most {SKILL_FILE_BYTES}")
    return content


def _head(skill_md: bytes, folder: Path, where: str) -> tuple[str, str]:
    """The name and description of SKILL.md's head; the name falls back on the folder's."""
    found = _FRONTMATTER.match(skill_md.decode("utf-8-sig", errors="replace"))
    try:
        head = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError:
        raise AgentFileError(f"{where}: the head of {folder / 'SKILL.md'} is not YAML") from None
    head = head if isinstance(head, dict) else {}
    name, description = head.get("name", folder.resolve().name), head.get("description")
    if not isinstance(name, str) or not _NAME.match(name):
        raise AgentFileError(f"{where}: {name!r} cannot be a skill's name; use letters, digits, - and _, at most 64")
    if not isinstance(description, str) or not description.strip():
        raise AgentFileError(
            f"{where}: {folder / 'SKILL.md'} has no description; begin it with: ---, description: …, ---"
        )
    return name, " ".join(description.split())
