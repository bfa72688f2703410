"""Which model answers: the one whose key the environment holds, else the fixture."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from pod_host.dev.models.base import Model
from pod_host.dev.models.fixture import FixtureModel
from pod_host.errors import ConfigurationError


def choose_model(environ: Mapping[str, str]) -> Model:
    """``ANTHROPIC_API_KEY``, else ``OPENAI_API_KEY``, else the fixture model. The SDKs are imported only when used:
    they take a second. Raises ConfigurationError for a base URL that is none."""
    if environ.get("ANTHROPIC_API_KEY"):
        _check_url(environ, "ANTHROPIC_BASE_URL")
        from pod_host.dev.models.anthropic import AnthropicModel

        return AnthropicModel.of(environ)
    if environ.get("OPENAI_API_KEY"):
        _check_url(environ, "OPENAI_BASE_URL")
        from pod_host.dev.models.openai import OpenAIModel

        return OpenAIModel.of(environ)
    return FixtureModel()


def _check_url(environ: Mapping[str, str], name: str) -> None:
    url = environ.get(name)
    try:
        parts = urlsplit(url or "http://unset")
        well = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well = False
    if not well:
        raise ConfigurationError([f"{name} is no URL; write http://… or https://…, as in http://127.0.0.1:8000/v1"])
