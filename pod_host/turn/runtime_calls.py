"""Calls that core runs itself, in the intent's own transaction (Harness API v5, section 4: target ``runtime``)."""

from __future__ import annotations

from pod_host.contract.base import JsonObject
from pod_host.turn.journal import Execution, Fate, Unknown


async def run_by_core(arguments: JsonObject, execution: Execution) -> Fate:
    """Core answers such an intent as completed, never ``execute``: what it meant by that we do not know."""
    return Unknown("The Runtime runs this call itself, and yet said to execute it; nothing was run here.")
