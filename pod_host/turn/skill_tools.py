"""``load_skill`` and ``read_skill_resource``: the agent's skills for the model to read (Harness API v5, section 4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pod_host.contract.base import JsonObject
from pod_host.contract.effects import HarnessTarget
from pod_host.turn.checking import OwnSchema
from pod_host.turn.journal import Execution, Fate, Known
from pod_host.turn.results import failure
from pod_host.turn.skill_files import SkillFiles, SkillMounts, SkillUnavailable
from pod_host.turn.skills import MAIN, Skill, Skills
from pod_host.turn.toolset import Tool

_HEAD: Final = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_NAME: Final[JsonObject] = {"type": "string", "description": "The skill's name."}
_LOAD: Final[JsonObject] = {
    "type": "object",
    "properties": {"name": _NAME},
    "required": ["name"],
    "additionalProperties": False,
}
_READ: Final[JsonObject] = {
    "type": "object",
    "properties": {"name": _NAME, "path": {"type": "string", "description": "A file of it, as load_skill lists it."}},
    "required": ["name", "path"],
    "additionalProperties": False,
}
_SCHEMAS: Final = {"load_skill": OwnSchema(_LOAD), "read_skill_resource": OwnSchema(_READ)}


@dataclass(frozen=True, slots=True)
class SkillTools:
    """Offered only when there are skills."""

    skills: Skills
    files: SkillFiles
    mounts: SkillMounts

    def tools(self) -> Iterable[Tool]:
        for name, description, schema, run in (
            ("load_skill", "Reads a skill's instructions, and lists its files.", _LOAD, self._load),
            ("read_skill_resource", "Reads a text file of a skill.", _READ, self._read),
        ):
            yield Tool(
                name=name,
                description=description,
                input_schema=schema,
                target=HarnessTarget(kind="harness"),
                parallel=True,
                check=_SCHEMAS[name].issues,
                run=run,
                skill_of=self._known,
            )

    def _known(self, arguments: JsonObject) -> str | None:
        skill = self.skills.get(arguments["name"])
        return skill.name if skill else None

    async def _load(self, arguments: JsonObject, execution: Execution) -> Fate:
        skill = self.skills.get(arguments["name"])
        if skill is None:
            return self._unknown(arguments)
        try:
            text = (await self.files.read(skill, MAIN)).decode("utf-8-sig")
        except SkillUnavailable as fault:
            return Known(failure(fault.code, str(fault)))
        except UnicodeDecodeError:
            return Known(failure("skill.binary_resource", f"{MAIN} of the skill {skill.name} is no text"))
        output: JsonObject = {"name": skill.name, "content": _HEAD.sub("", text, count=1)}
        others = sorted(path for path in skill.files if path != MAIN)
        if others:
            output["resources"] = others
        path = await self.mounts.mount(skill)
        if path is not None:
            output["sandboxPath"] = path
        elif why := self.mounts.fault(skill):
            output["note"] = f"The skill's files are not in the sandbox: {why}"
        return Known({"kind": "completed", "output": output})

    async def _read(self, arguments: JsonObject, execution: Execution) -> Fate:
        skill = self.skills.get(arguments["name"])
        if skill is None:
            return self._unknown(arguments)
        path = arguments["path"]
        if path not in skill.files:
            there = ", ".join(sorted(skill.files))
            return Known(failure("skill.unknown_resource", f"{skill.name} has no file {path}. It has: {there}"))
        try:
            text = (await self.files.read(skill, path)).decode("utf-8")
        except SkillUnavailable as fault:
            return Known(failure(fault.code, str(fault)))
        except UnicodeDecodeError:
            where = self._where(skill, path)
            return Known(failure("skill.binary_resource", f"{path} of the skill {skill.name} is no text{where}"))
        return Known({"kind": "completed", "output": {"name": skill.name, "path": path, "content": text}})

    def _where(self, skill: Skill, path: str) -> str:
        folder = self.skills.path(skill)
        return f"; commands find it at {folder}/{path}" if folder else ""

    def _unknown(self, arguments: JsonObject) -> Fate:
        there = ", ".join(self.skills.names)
        return Known(failure("skill.unknown", f"There is no skill named {arguments['name']}. There are: {there}"))
