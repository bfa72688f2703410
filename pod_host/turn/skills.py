"""The agent's skills (Harness API v5, section 3): what the manifest says of them, and where they lie in the sandbox."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pod_host import limits
from pod_host.contract.base import Json, JsonObject
from pod_host.contract.canonical import canonical, sha256_hex
from pod_host.turn.log import tell

MAIN: Final = "SKILL.md"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HASH_DIGITS: Final = 12  # in a folder's name


@dataclass(frozen=True, slots=True)
class Skill:
    """``files``: relative path to ``sha256:<hex>``. ``plugin``-brought ones are as any other."""

    name: str
    description: str
    files: Mapping[str, str]

    @property
    def folder(self) -> str:
        """``<name>@<hash>``, below the skills directory: another version of the skill is another folder."""
        return f"{self.name}@{sha256_hex(canonical(dict(self.files)))[:_HASH_DIGITS]}"


class Skills:
    """Those of one turn, in the manifest's order. ``directory``: where the sandbox has them; None without a sandbox."""

    def __init__(self, skills: Sequence[Skill], directory: str | None) -> None:
        self.directory = directory
        self._by_name = {skill.name: skill for skill in skills}

    @classmethod
    def of(cls, manifest: JsonObject, directory: str | None) -> Skills:
        """One that cannot be read is left out, and the log says so."""
        return cls(list(_read(manifest.get("skills"))), directory)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._by_name.values())

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def get(self, name: Json) -> Skill | None:
        return self._by_name.get(name) if isinstance(name, str) else None

    def path(self, skill: Skill) -> str | None:
        """Its folder in the sandbox."""
        return f"{self.directory}/{skill.folder}" if self.directory else None

    def named_in(self, arguments: JsonObject) -> str | None:
        """The skill whose folder a sandbox call's input names; the first of several in the manifest's order."""
        texts = [value for value in arguments.values() if isinstance(value, str)]
        for skill in self._by_name.values():
            path = self.path(skill)
            if path is not None and any(path in text for text in texts):
                return skill.name
        return None

    def section(self) -> str:
        """What the prompt says of them; empty when there are none."""
        if not self:
            return ""
        lines = ["# Skills", "- Load a skill with load_skill before you do what it is for."]
        if self.directory:
            lines.append("- Their files lie in the sandbox, read-only; run a script by its interpreter.")
        for skill in self._by_name.values():
            path = self.path(skill)
            lines.append(f"- {skill.name}: {' '.join(skill.description.split())}" + (f" ({path})" if path else ""))
        return "\n".join(lines)


NO_SKILLS: Final = Skills((), None)


def _read(value: Json) -> Iterable[Skill]:
    """The manifest's ``skills``: a list, or an object by name."""
    if isinstance(value, dict):
        value = [{"name": name, **entry} for name, entry in value.items() if isinstance(entry, dict)]
        value.sort(key=lambda entry: str(entry["name"]))  # members come in any order
    seen: set[str] = set()
    for entry in value if isinstance(value, list) else ():
        fault = _fault(entry, seen)
        if fault is None:
            seen.add(entry["name"])
            yield Skill(entry["name"], str(entry.get("description") or ""), entry["files"])
        else:
            name = entry.get("name") if isinstance(entry, dict) else None
            tell(logging.WARNING, "skill.left_out", skill=name if isinstance(name, str) else None, why=fault)


def _fault(entry: Json, seen: set[str]) -> str | None:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "it has no usable name"
    if name in seen:
        return "another skill has its name"
    files = entry.get("files")
    if not isinstance(files, dict) or MAIN not in files or len(files) > limits.SKILL_FILES:
        return f"files: 1 to {limits.SKILL_FILES} are needed, {MAIN} among them"
    for path, content in files.items():
        if not isinstance(content, str) or not _HASH.fullmatch(content):
            return f"files: {path}: no sha256"
        if len(path) > limits.SKILL_PATH_CHARACTERS or "\\" in path or not path.isprintable() or not _is_inside(path):
            return f"files: {path!r} is no relative path"
    return None


def _is_inside(path: str) -> bool:
    return not any(part in ("", ".", "..") for part in path.split("/"))
