"""Blocks of a model's answer in the shapes that the contract knows (Harness API v5, section 6). What comes otherwise must not
get into the transcript, which core may refuse for it when all work is done, nor into the next prompt."""

from __future__ import annotations

from pod_host.contract.base import Json, JsonObject


def in_shape(block: Json) -> JsonObject | None:
    """``block`` without what does not fit its type; None when nothing of it is left, or no such type is known."""
    if not isinstance(block, dict):
        return None
    kind, text, metadata = block.get("type"), block.get("text"), block.get("providerMetadata")
    if "providerMetadata" in block and not isinstance(metadata, dict):
        block = {name: value for name, value in block.items() if name != "providerMetadata"}
        metadata = None
    if kind == "text":
        return block if isinstance(text, str) else None
    if kind == "reasoning" and metadata:
        return block if isinstance(text, str) else {**block, "text": ""}
    if kind == "reasoning":
        return block if isinstance(text, str) else None
    if kind == "json":
        return block if "value" in block else None
    return _call(block) if kind == "tool-call" else None


def _call(block: JsonObject) -> JsonObject | None:
    if not all(isinstance(block.get(name), str) and block[name] for name in ("id", "name")):
        return None
    args = block.get("args")
    if isinstance(args, dict):
        return block
    raw = {"raw": args} if args is not None and "raw" not in block else {}
    return {**block, **raw, "args": {}}
