"""Names of MCP tools for the model: ``server__tool``, of letters, digits, - and _, within 64 characters (Harness API v5,
section 3, ``mcp``). The same tools in the same order have the same names, always."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

NAME_CHARACTERS: Final = 64  # what every provider accepts
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS: Final = 8

Identity = tuple[str, str]
"""A server's name, and its own name for the tool."""


def mcp_names(identities: Iterable[Identity]) -> dict[Identity, str]:
    """A name for each. Those that need no change keep theirs; of others that would share one, the first has it, and the
    rest end in a piece of their identity's hash. One that even so has no name of its own is left out."""
    identities = list(dict.fromkeys(identities))
    wanted = {identity: _OTHER.sub("_", _whole(identity)) for identity in identities}
    names: dict[Identity, str] = {}
    taken: set[str] = set()
    for identity in sorted(identities, key=lambda identity: wanted[identity] != _whole(identity)):
        for name in (wanted[identity], _hashed(identity, wanted[identity])):
            if len(name) <= NAME_CHARACTERS and name not in taken:
                names[identity] = name
                taken.add(name)
                break
    return names


def _whole(identity: Identity) -> str:
    return "__".join(identity)


def _hashed(identity: Identity, wanted: str) -> str:
    digest = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{wanted[: NAME_CHARACTERS - _DIGITS - 1]}_{digest}"
