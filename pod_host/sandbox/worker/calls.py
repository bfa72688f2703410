"""The calls of the host: each finds its place in its session's order, runs as a command or in a thread, is answered."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pod_host import limits
from pod_host.sandbox.frames import Header
from pod_host.sandbox.outcomes import Failed, Outcome
from pod_host.sandbox.raw import RawResult
from pod_host.sandbox.tools.running import FILE_TOOLS, run_file_tool, shape_bash
from pod_host.sandbox.tools.workspace import Workspace
from pod_host.sandbox.worker.command import RunningCommand
from pod_host.sandbox.worker.files import FileOperations
from pod_host.sandbox.worker.machinery import Machinery
from pod_host.sandbox.worker.order import Order, Turn
from pod_host.sandbox.worker.search import Cancellation, SearchRunner
from pod_host.sandbox.worker.skills import SkillFolders
from pod_host.sandbox.worker.start import Settings, Started
from pod_host.sandbox.worker.threads import Threads

_READERS: Final = frozenset({"read", "grep", "glob", "read_bytes", "list_folder"})
_ABORTED: Final = Failed("sandbox.aborted", "The call was aborted before it ran.")


@dataclass(slots=True)
class Call:
    header: Header
    body: memoryview
    cancellation: Cancellation = field(default_factory=Cancellation)
    command: RunningCommand | None = None
    running: bool = False
    answered: bool = False

    @property
    def runs_script(self) -> bool:
        return self.header["do"] == "command" or self.header.get("tool") == "bash"


class Calls:
    def __init__(
        self,
        settings: Settings,
        started: Started,
        machinery: Machinery,
        threads: Threads,
        send: Callable[..., None],
    ) -> None:
        self._machinery = machinery
        self._threads = threads
        self._send = send
        self._workspace_path = settings.workspace
        self._searches = SearchRunner(machinery, started.ripgrep, started.ripgrep_descriptor)
        read_only = tuple(os.path.realpath(path) for path in settings.read_only())
        self._workspace = Workspace(settings.workspace, self._searches, started.ripgrep, read_only=read_only)
        self._files = FileOperations(settings.workspace, settings.home)
        self._skills = SkillFolders(settings.skills)
        self._order = Order(machinery.loop.soon)
        self._calls: dict[int, Call] = {}
        self._environment: dict[str, str] = {}

    def begin(self, header: Header, body: memoryview) -> None:
        call = Call(header, body)
        self._calls[header["id"]] = call
        if call.runs_script:  # one that names no environment has that of the one before
            self._environment = header.setdefault("environment", self._environment)
        kind = header["tool"] if header["do"] == "tool" else header["do"]
        self._order.enter(header["session"], lambda turn: self._run(call, turn), writes=kind not in _READERS)

    def abort(self, identifier: int) -> None:
        """The tree of a command is killed, a search too; a call that waits for its turn is answered now."""
        call = self._calls.get(identifier)
        if call is None:
            return  # its answer is on its way
        call.cancellation.abort()
        if call.command is not None:
            call.command.kill("abort")
        elif not call.running:
            # Its place in the order stays: whoever waits behind it waits for those before it as well.
            self._answer(call, shape_bash(RawResult(130, aborted=True)) if call.runs_script else _ABORTED)

    def _run(self, call: Call, turn: Turn) -> None:
        def finished(outcome: Outcome) -> None:
            call.command = None
            self._answer(call, outcome)
            self._order.leave(call.header["session"], turn)

        call.running = True
        if call.cancellation.aborted:
            finished(_ABORTED)
        elif call.runs_script:
            self._run_script(call, finished)
        else:
            self._threads.submit(lambda: self._work(call), finished)

    def _run_script(self, call: Call, finished: Callable[[Outcome], None]) -> None:
        header = call.header
        if header["do"] == "command":
            script, cwd, seconds = header["command"], header["cwd"], header["timeout_seconds"]
        else:
            script, cwd = header["input"]["command"], self._workspace_path
            seconds = header["input"].get("timeout", limits.BASH_TIMEOUT_SECONDS)
        if "\0" in script or "\0" in cwd:
            finished(Failed("sandbox.error", "A command holds no NUL character."))
            return

        def done(result: RawResult | str) -> None:
            finished(Failed("sandbox.start_failed", result) if isinstance(result, str) else shape_bash(result))

        try:
            call.command = RunningCommand(
                self._machinery, session=header["session"], script=script, cwd=cwd, environment=header["environment"],
                traceparent=header["traceparent"],
                timeout_seconds=seconds, done=done,
            )  # fmt: skip
        except OSError as error:
            done(f"Could not start the command: {error.strerror}.")
        except Exception as error:  # noqa: BLE001 - a fault of ours fails this call, not the worker with everybody's
            traceback.print_exc(file=sys.stderr)
            done(f"Could not start the command: {type(error).__name__}: {error}")

    def _work(self, call: Call) -> Outcome:
        """In a thread."""
        self._searches.current.cancellation = call.cancellation
        try:
            return self._file_call(call.header, call.body)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not take the thread, nor the caller's answer
            traceback.print_exc(file=sys.stderr)
            return Failed("sandbox.error", f"{type(error).__name__}: {error}")

    def _file_call(self, header: Header, body: memoryview) -> Outcome:
        match header["do"]:
            case "tool":
                tool: str = header["tool"]
                tool_input: Mapping[str, Any] = header["input"]
                if tool not in FILE_TOOLS:
                    return Failed("sandbox.unsupported", f"There is no tool {tool!r}.")
                return run_file_tool(tool, tool_input, self._workspace)
            case "put_file":
                return self._files.put(header["path"], body, header["mode"])
            case "append_log":
                return self._files.append(header["path"], header["text"])
            case "read_bytes":
                return self._files.read(header["path"], header["offset"], header["length"])
            case "list_folder":
                return self._files.list(header["path"], header["most"])
            case "mount_skill":
                return self._skills.mount(header["folder"], header["files"], body)
            case other:
                return Failed("sandbox.unsupported", f"The worker does not know {other!r}.")

    def _answer(self, call: Call, outcome: Outcome) -> None:
        if call.answered:
            return
        call.answered = True
        identifier = call.header["id"]
        del self._calls[identifier]
        if isinstance(outcome, Failed):
            self._send({"id": identifier, "outcome": "failed", "code": outcome.code, "message": outcome.message})
        elif isinstance(outcome.output, dict) and isinstance(outcome.output.get("bytes"), bytes):
            rest = {name: value for name, value in outcome.output.items() if name != "bytes"}
            self._send({"id": identifier, "outcome": "bytes", "output": rest}, outcome.output["bytes"])
        else:
            self._send({"id": identifier, "outcome": "completed", "output": outcome.output})
