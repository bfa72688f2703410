"""Which model answers: the one whose key the environment holds, else the fixture."""

from __future__ import annotations

from collections.abc import Mapping

from pod_host.dev.models.base import Model
from pod_host.dev.models.fixture import FixtureModel


def choose_model(environ: Mapping[str, str]) -> Model:
    """``ANTHROPIC_API_KEY``, else ``OPENAI_API_KEY``, else the fixture model. The SDKs are imported only when used:
    they take a second."""
    if environ.get("ANTHROPIC_API_KEY"):
        from pod_host.dev.models.anthropic import AnthropicModel

        return AnthropicModel.of(environ)
    if environ.get("OPENAI_API_KEY"):
        from pod_host.dev.models.openai import OpenAIModel

        return OpenAIModel.of(environ)
    return FixtureModel()
