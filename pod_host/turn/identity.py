"""The names of a segment's effects (Harness API v5, section 4): derived from the checkpoint and the place in the turn,
never from the order in which things happen, so that a run that starts over asks for the same ids."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pydantic import TypeAdapter, ValidationError

from pod_host.contract.base import Id, JsonObject
from pod_host.contract.canonical import effect_id
from pod_host.contract.effects import ModelContext, ModelIntent, Target, ToolContext, ToolIntent
from pod_host.contract.turn_start import TurnStart

_ID: Final[TypeAdapter[str]] = TypeAdapter(Id)


@dataclass(frozen=True, slots=True)
class Identities:
    """Makes the intents of one segment. Steps count from 1 over the whole turn, calls from 0 within their step.

    ``within``: the identity of the call whose agent's effects these are, and a slash; empty for the session's own."""

    session_id: str
    turn_id: str
    segment: int
    agent_id: str
    manifest_hash: str
    within: str = ""

    @classmethod
    def of(cls, start: TurnStart) -> Identities:
        checkpoint = start.checkpoint
        return cls(
            session_id=checkpoint.session_id,
            turn_id=checkpoint.turn_id,
            segment=checkpoint.segment,
            agent_id=_agent_of(start),
            manifest_hash=checkpoint.manifest_hash,
        )

    def of_agent(self, effect_id: str) -> Identities:
        """For the effects of the agent that the call ``effect_id`` runs."""
        prefix = replace(self, within="")._effect_id("tool", "")
        return replace(self, within=f"{effect_id.removeprefix(prefix)}/")

    def step_id(self, step: int) -> str:
        """The step's name in transcript entries: unique in the session."""
        return f"{self.turn_id}.{self.within}step-{step}"

    def model(self, step: int, attempt: int) -> ModelIntent:
        """The model call of a step. A call asked again after a failure is an effect of its own."""
        return self._model_intent(_attempt(f"step-{step}", attempt))

    def summary(self, step: int, trigger: str, number: int, attempt: int) -> ModelIntent:
        """Call ``number`` (from 1) of those that write a summary before the call of ``step``."""
        identity = f"step-{step}/summary-{trigger}-{number}"
        return self._model_intent(_attempt(identity, attempt)).model_copy(update={"purpose": "summary"})

    def _model_intent(self, identity: str) -> ModelIntent:
        return ModelIntent(
            effect_id=self._effect_id("model", identity),
            session_id=self.session_id,
            turn_id=self.turn_id,
            agent_id=self.agent_id,
            manifest_hash=self.manifest_hash,
            kind="model",
            context=ModelContext(invocation_id=self._invocation(identity)),
        )

    def tool(
        self,
        step: int,
        index: int,
        *,
        call_id: str,
        tool_name: str,
        target: Target,
        arguments: JsonObject,
        skill: str | None = None,
    ) -> ToolIntent:
        """Call ``index`` of a step's answer. The model's own call id may come twice, so it is not the identity.
        ``skill``: the one that the call uses."""
        return ToolIntent(
            effect_id=self._effect_id("tool", f"step-{step}/{index}"),
            session_id=self.session_id,
            turn_id=self.turn_id,
            agent_id=self.agent_id,
            manifest_hash=self.manifest_hash,
            kind="tool",
            tool_name=tool_name,
            target=target,
            input=arguments,
            context=ToolContext(
                call_id=call_id, invocation_id=self._invocation(f"step-{step}.{index}"), step_id=self.step_id(step)
            ),
            **({"skill": skill} if skill else {}),
        )

    def _effect_id(self, kind: str, identity: str) -> str:
        return effect_id(self.turn_id, self.segment, kind, f"{self.within}{identity}")

    def _invocation(self, identity: str) -> str:
        return f"{self.turn_id}.{self.segment}.{self.within}{identity}"


def _attempt(identity: str, attempt: int) -> str:
    return identity if attempt == 1 else f"{identity}~{attempt}"


def _agent_of(start: TurnStart) -> str:
    """The manifest's own id, where it is one: nobody has checked it, nor that of the sandbox's Agent."""
    for id_ in (start.manifest.get("id"), start.agent and start.agent.id):
        with suppress(ValidationError):
            return _ID.validate_python(id_)
    return "agent"
