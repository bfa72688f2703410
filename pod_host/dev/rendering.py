"""Record events and the host's log as lines for a terminal.

What models and tools say is not trusted: nothing of it reaches the terminal as a control character.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from datetime import datetime
from typing import Final

from pod_host.contract.base import Json, JsonObject

OUTPUT_LINES: Final = 24  # of a tool's output: the first half and the last
INPUT_LINES: Final = 8  # of one argument
STEP_LINES: Final = 12  # of a setup step's output
_SEQUENCES = re.compile(
    r"\x9b[0-?]*[ -/]*[@-~]|\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|\Z)|[@-Z\\-_]|[ -/]+[0-~]|.)",
    re.DOTALL,
)
# Control characters of both sets, and those that turn the direction of a line.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_COLOURS: Final = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def clean(text: str) -> str:
    """``text`` without escape sequences and control characters; line feeds and tabs stay."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def word(text: str) -> str:
    """``text`` on one line: a name, a path, a code."""
    return " ".join(clean(text).split())


def shortened(text: str, most: int, width: int) -> list[str]:
    """The lines of ``text``, the middle ones left out past ``most``, each cut at ``width`` characters."""
    lines = clean(text).expandtabs(4).strip("\n").split("\n")
    if len(lines) > most:
        head = most // 2
        tail = most - head
        lines = [*lines[:head], f"… {len(lines) - most} more lines …", *lines[-tail:]]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]


class Screen:
    """Draws events. ``write`` gets whole lines; ``width`` is asked each time, since windows change."""

    def __init__(self, write: Callable[[str], None], *, colours: bool, width: Callable[[], int]) -> None:
        self._write = write
        self._colours = colours
        self._width = width
        self._open: dict[str, str] = {}  # calls under way, by effect id: their headlines
        self._last: str | None = None  # the call whose headline is the last thing on the screen
        self._said = ""  # the model's last text
        self._turn = _Turn()

    # --- What the command says -------------------------------------------------------------------------------------------

    def say(self, text: str, style: str = "dim") -> None:
        self._last = None
        for line in clean(text).split("\n"):
            self._write(self._styled(line, style))

    # --- The host's log --------------------------------------------------------------------------------------------------

    def host_event(self, event: JsonObject) -> None:
        """Setup's steps, and what is wrong; the rest of the host's log is for operators."""
        match event.get("event"):
            case "setup.started":
                self.say(f"setup: {_count(event.get('of'), 'step')}", "bold")
            case "setup.step":
                what = str(event.get("what")).split("\n")[0]
                self.say(self._cut(f"setup {event.get('step')}/{event.get('of')}  {what}"), "cyan")
            case "setup.output":
                self._block(str(event.get("output") or ""), STEP_LINES, "dim")
                self.say(f"    {_time(event.get('durationMs'))}")
            case "setup.done":
                self.say(f"setup: done in {_time(event.get('durationMs'))}", "green")
            case "setup.failed":
                self._block(str(event.get("output") or ""), STEP_LINES, "dim")
                reason = str(event.get("reason")).rstrip(".")
                whole = f"; its whole output: {event['log']}" if event.get("log") else ""
                self.say(f"setup failed: {reason}{whole}", "red")
            case "gate.off" | "channel.closed":
                pass  # on a laptop there is no policy to prove; the record tells of connections
            case name if event.get("level") in {"warning", "error"}:
                told = {key: value for key, value in event.items() if key not in {"at", "level", "event", "traceback"}}
                self.say(
                    self._cut(f"host: {name} {' '.join(f'{key}={_brief(value)}' for key, value in told.items())}"),
                    "yellow",
                )

    # --- The record ------------------------------------------------------------------------------------------------------

    def event(self, event: JsonObject) -> None:
        match event["type"]:
            case "turn.started":
                self._turn = _Turn(event["at"])
            case "message.assistant":
                self._assistant(event)
            case "model.failed":
                self.say(f"the model failed: {event.get('code')}: {event.get('message')}", "red")
            case "tool.started":
                self._tool_started(event)
            case "tool.completed":
                self._tool_completed(event)
            case "turn.completed":
                self._output(event.get("output"))
                self._ended("completed", "green", event)
            case "turn.failed":
                error = event.get("error") or {}
                self._ended(f"failed: {error.get('code')}: {error.get('message')}", "red", event)
            case "turn.cancelled":
                self._ended("cancelled", "yellow", event)
            case "context.compacted":
                self.say("the conversation was summarised to fit the model's window")
            case "run.lost":
                self.say(f"the run was lost: {event.get('reason')}", "yellow")
            case "host.refused":
                self.say(f"the host was refused ({event.get('what')}): {event.get('reason')}", "yellow")
            case "host.disconnected":
                self.say(f"the host's connection closed: {event.get('reason')}", "yellow")
            case "warning":
                self.say(f"warning: {event.get('text')}", "yellow")

    def question(self, interaction: JsonObject) -> None:
        """What a person is asked to approve."""
        name = str(interaction.get("toolName"))
        self.say(str(interaction.get("prompt") or f"Approve {name}?"), "bold")
        for line in self._arguments(name, interaction.get("input")):
            self._write(self._styled(f"    {line}", "dim"))

    # --- Parts -----------------------------------------------------------------------------------------------------------

    def _assistant(self, event: JsonObject) -> None:
        self._turn.model_calls += 1
        usage = event.get("usage") or {}
        self._turn.tokens += usage.get("totalTokens") or 0
        self._said = str(event.get("text") or "")
        if self._said.strip():
            self._prose(self._said)

    def _output(self, output: Json) -> None:
        """The turn's output, when it is not what the model has just said."""
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
        if output is not None and text.strip() != self._said.strip():
            self._prose(text)

    def _prose(self, text: str) -> None:
        self._last = None
        for line in clean(text).strip("\n").split("\n"):
            wrapped = textwrap.wrap(line, self._width(), drop_whitespace=False, replace_whitespace=False) or [""]
            for piece in wrapped:
                self._write(piece.rstrip())

    def _tool_started(self, event: JsonObject) -> None:
        self._turn.tool_calls += 1
        name = word(str(event.get("toolName")))
        first, *rest = self._arguments(name, event.get("input")) or [""]
        headline = self._cut(f"  ▸ {name}  {first}".rstrip())
        self._open[event["effectId"]] = headline
        self._last = event["effectId"]
        self._write(self._styled(headline, "cyan"))
        for line in rest:
            self._write(self._styled(self._cut(f"      {line}"), "dim"))

    def _tool_completed(self, event: JsonObject) -> None:
        headline = self._open.pop(event["effectId"], None)
        if headline is None or self._last != event["effectId"]:  # others began or ended in between, or it never ran
            shown = headline.replace("▸", "◂", 1) if headline else f"  ◂ {word(str(event.get('toolName')))}"
            self._write(self._styled(shown, "cyan"))
        self._last = None
        took = _time(event.get("durationMs"))
        error = event.get("error")
        if error:
            self._block(str(error.get("message") or ""), OUTPUT_LINES, "dim")
            self._write(self._styled(f"    failed: {word(str(error.get('code')))} · {took}", "red"))
            return
        output = event.get("output")
        if isinstance(output, dict) and "exitCode" in output:
            self._block(str(output.get("stdout") or ""), OUTPUT_LINES, "dim")
            self._block(str(output.get("stderr") or ""), OUTPUT_LINES, "dim")
            code = output["exitCode"]
            self._write(self._styled(f"    exit {code} · {took}", "dim" if code == 0 else "yellow"))
            return
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        self._block(text, OUTPUT_LINES, "dim")
        self._write(self._styled(f"    {took}", "dim"))

    def _arguments(self, name: str, given: Json) -> list[str]:
        """A call's arguments, one or more lines; the first fits beside the tool's name."""
        if not isinstance(given, dict):
            return [_brief(given)] if given is not None else []
        given = dict(given)
        if isinstance(given.get("command"), str) and name == "bash":
            first, *rest = shortened(given.pop("command"), INPUT_LINES, self._width())
            others = f"  ({_pairs(given)})" if given else ""
            return [f"$ {first}{others}", *rest]
        lines = []
        path = f"{word(str(given.pop('path')))}  " if isinstance(given.get("path"), str) else ""
        for member, mark in (("old_string", "- "), ("new_string", "+ "), ("content", "")):
            if isinstance(given.get(member), str):
                lines += [mark + line for line in shortened(given.pop(member), INPUT_LINES, self._width())]
        return [path + _pairs(given), *lines]

    def _block(self, text: str, most: int, style: str) -> None:
        if text.strip():
            for line in shortened(text, most, self._width() - 4):
                self._write(self._styled(f"    {line}", style))

    def _ended(self, how: str, style: str, event: JsonObject) -> None:
        turn = self._turn
        facts = [_count(turn.model_calls, "model call"), _count(turn.tool_calls, "tool call")]
        if turn.tokens:
            facts.append(f"{turn.tokens} tokens")
        self.say(f"— {how} · {turn.seconds(event['at'])} · {', '.join(facts)}", style)

    def _cut(self, line: str) -> str:
        width = self._width()
        return line if len(line) <= width else line[: width - 1] + "…"

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self._colours and text else text


class _Turn:
    """What is counted for a turn's last line."""

    def __init__(self, started: str = "") -> None:
        self._started = started
        self.model_calls = 0
        self.tool_calls = 0
        self.tokens = 0

    def seconds(self, ended: str) -> str:
        try:
            lasted = datetime.fromisoformat(ended) - datetime.fromisoformat(self._started)
        except ValueError:  # its start was not seen: it began before this terminal
            return "?"
        return _time(lasted.total_seconds() * 1000)


def _count(number: Json, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _time(milliseconds: Json) -> str:
    if not isinstance(milliseconds, int | float):
        return ""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _brief(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return word(text)


def _pairs(given: JsonObject) -> str:
    return " ".join(f"{word(str(name))}={_brief(value)}" for name, value in given.items())
