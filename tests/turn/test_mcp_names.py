"""Names of MCP tools: within 64 characters, of letters, digits, - and _, one for each, the same each time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host.turn.mcp_names import Identity, mcp_names

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
names = st.text(st.sampled_from("aé _-./"), min_size=1, max_size=4) | st.text(min_size=1, max_size=80)
identities = st.lists(st.tuples(names, names), max_size=12)


@given(identities)
def test_every_tool_has_a_name_of_its_own_that_every_provider_takes(given_identities: list[Identity]) -> None:
    made = mcp_names(given_identities)
    assert set(made) == set(given_identities)
    assert len(set(made.values())) == len(made)
    assert all(NAME.fullmatch(name) for name in made.values())
    assert made == mcp_names(given_identities)


@pytest.mark.parametrize(
    ("given_identities", "made"),
    [
        ([("docs", "search")], ["docs__search"]),
        ([("my docs", "get/page")], ["my_docs__get_page"]),
        ([("a", "b.c"), ("a", "b_c")], ["a__b_c_f13c55d8", "a__b_c"]),
        ([("a", "b.c"), ("a", "b/c")], ["a__b_c", "a__b_c_b4d31c7e"]),
        ([("a", "b__c"), ("a__b", "c")], ["a__b__c", "a__b__c_bd1b0ff5"]),
        ([("docs", "x" * 59)], [f"docs__{'x' * 49}_d86ecb53"]),
        ([("docs", "x" * 58)], [f"docs__{'x' * 58}"]),
    ],
)
def test_names_that_need_no_change_keep_theirs_and_others_end_in_a_hash(
    given_identities: list[Identity], made: list[str]
) -> None:
    names = mcp_names(given_identities)
    found = [names[identity] for identity in given_identities]
    assert [re.sub(r"_[0-9a-f]{8}$", "_#", name) for name in found] == [
        re.sub(r"_[0-9a-f]{8}$", "_#", name) for name in made
    ]


def test_a_name_does_not_change_with_the_tools_beside_it() -> None:
    alone = mcp_names([("docs", "get page")])
    beside = mcp_names([("docs", "a"), ("docs", "get page"), ("other", "get page")])
    assert beside["docs", "get page"] == alone["docs", "get page"]
