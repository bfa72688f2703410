"""A conversation with a model, its tools run for real in a folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from pod_host.contract.base import Json, JsonObject
from pod_host.dev.models.base import Model

Tool = Callable[[JsonObject], JsonObject]


async def no_files(reference: JsonObject) -> tuple[bytes, str]:
    raise LookupError(f"{reference} is not there")


def completed(output: Json) -> JsonObject:
    return {"kind": "completed", "output": output}


def refused(code: str, message: str) -> JsonObject:
    return {"kind": "failed", "code": code, "message": message}


class Folder:
    """The six tools on a folder, as the contract's results have them."""

    def __init__(self, path: Path, programs: Path | None = None) -> None:
        """``programs``: the only PATH that commands get."""
        self.path = path
        self._environment = {**os.environ, "PATH": str(programs)} if programs else dict(os.environ)

    def tools(self) -> dict[str, Tool]:
        names = ("bash", "read", "write", "edit", "grep", "glob")
        return {name: getattr(self, name) for name in names}

    def bash(self, args: JsonObject) -> JsonObject:
        ran = subprocess.run(
            ["/bin/sh", "-c", args["command"]], cwd=self.path, env=self._environment, capture_output=True, text=True
        )
        return completed({"exitCode": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr})

    def read(self, args: JsonObject) -> JsonObject:
        path = self.path / args["path"]
        if not path.is_file():
            return refused("sandbox.not_found", f"No file at {path}")
        lines = path.read_text().splitlines()
        return completed("\n".join(f"{number}\t{line}" for number, line in enumerate(lines, 1)))

    def write(self, args: JsonObject) -> JsonObject:
        path = self.path / args["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(args["content"])
        return completed({"path": str(path), "bytes": len(args["content"].encode())})

    def edit(self, args: JsonObject) -> JsonObject:
        path = self.path / args["path"]
        text = path.read_text()
        if text.count(args["old_string"]) != 1:
            return refused("sandbox.edit_no_match", "old_string was not found once")
        path.write_text(text.replace(args["old_string"], args["new_string"]))
        return completed({"path": str(path), "replacements": 1})

    def grep(self, args: JsonObject) -> JsonObject:
        ran = subprocess.run(
            ["grep", "-rnE", "-e", args["pattern"], args.get("path") or "."],
            cwd=self.path,
            capture_output=True,
            text=True,
        )
        return completed(ran.stdout.strip() or "No matches.")

    def glob(self, args: JsonObject) -> JsonObject:
        found = sorted(str(path) for path in self.path.glob(args["pattern"]) if path.is_file())
        return completed("\n".join(found) or "No files matched.")


class Chat:
    """Turns with ``model``, as a harness would hold them: the prompt grows, and each step's calls are run."""

    def __init__(self, model: Model, tools: dict[str, Tool], instructions: str = "") -> None:
        self.model = model
        self.tools = tools
        self.prompt: list[JsonObject] = []
        self.answers: list[JsonObject] = []
        if instructions:
            self.prompt.append({"kind": "instructions", "role": "system", "content": [text(instructions)]})

    def call(self) -> JsonObject:
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
        return {"prompt": self.prompt, "tools": tools, "executionId": "ses_1"}

    async def ask(self) -> JsonObject:
        answer = await self.model.answer(self.call(), effect_id="turn_1:0:model:step-1", files=no_files)
        assert await self.model.answer(self.call(), effect_id="another", files=no_files) == answer
        self.answers.append(answer)
        return answer

    async def say(self, message: str, most: int = 40) -> str:
        """One turn; its last text."""
        self.prompt.append({"kind": "message", "role": "user", "content": [text(message)]})
        for _ in range(most):
            answer = await self.ask()
            self.prompt.append({"kind": "message", "role": "assistant", "content": answer["output"]})
            calls = [block for block in answer["output"] if block["type"] == "tool-call"]
            assert answer["finishReason"] == ("tool-calls" if calls else "stop")
            if not calls:
                return "".join(block["text"] for block in answer["output"])
            self.prompt += [result_of(block, self.tools[block["name"]](block["args"])) for block in calls]
        raise AssertionError(f"no end after {most} steps")

    def calls(self, name: str) -> list[JsonObject]:
        """The arguments of every call of the tool ``name`` so far."""
        blocks = [block for answer in self.answers for block in answer["output"] if block["type"] == "tool-call"]
        return [block["args"] for block in blocks if block["name"] == name]


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def result_of(block: JsonObject, outcome: JsonObject) -> JsonObject:
    payload = outcome["output"] if outcome["kind"] == "completed" else outcome
    return {
        "kind": "tool-result",
        "toolCallId": block["id"],
        "toolName": block["name"],
        "status": outcome["kind"],
        "content": [text(json.dumps(payload))],
    }
