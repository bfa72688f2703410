"""Models behind the embedded Model Gate: a fixture that needs no network, Anthropic, and OpenAI-compatible servers."""

from __future__ import annotations

from pod_host.dev.models.base import FileReader, Model, ModelAnswer
from pod_host.dev.models.choose import choose_model

__all__ = ["FileReader", "Model", "ModelAnswer", "choose_model"]
