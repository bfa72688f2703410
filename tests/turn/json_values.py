"""JSON values for property tests, and what a Runtime may make of one without changing it."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from pod_host.contract.base import Json

texts = st.text(max_size=40)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, width=32) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(texts, values, max_size=4)


def crossed(value: Json, seed: int = 0) -> Json:
    """The same value with objects' members in another order and whole numbers in their other form."""
    shuffle = random.Random(seed)
    if isinstance(value, dict):
        members = list(value.items())
        shuffle.shuffle(members)
        return {name: crossed(member, seed) for name, member in members}
    if isinstance(value, list):
        return [crossed(item, seed) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return value
