"""JSON values for the property tests, and the vectors of the Runtime's own earlier code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

VECTORS = Path(__file__).parent.parent / "vectors"

surrogates = st.characters(categories=["Cs"])
texts = st.text(st.characters(exclude_categories=[]) | surrogates, max_size=20).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "surrogatepass"
    )  # as a JSON reader joins pairs
)
scalars = st.none() | st.booleans() | texts | st.floats(allow_nan=False, allow_infinity=False) | st.integers()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6), max_leaves=40
)


def vectors(name: str) -> list[dict[str, Any]]:
    """The vectors of one file, each with its ``name``."""
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}-vectors.json").read_text())["vectors"]
    return found


def nested(depth: int) -> Any:
    """A list in a list in a list…"""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
