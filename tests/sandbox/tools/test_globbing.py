"""Glob patterns against Node's ``path.matchesGlob``, and what no pattern may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod_host.sandbox.tools.globbing import BadGlob, Glob

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "glob-vectors.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['pattern']} - {vector['path']}")
def test_vector(vector: dict[str, Any]) -> None:
    assert Glob(vector["pattern"]).matches(vector["path"]) is vector["matches"]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        (".github/workflows/*.yml", ".github/workflows/ci.yml", True),
        ("**/.github/*", "a/.github/x", True),
        ("**/x", "a/.github/x", False),
        ("src/**", "src", False),
        ("**/src/**/a", "src/a", True),
        ("a/**/b/**/c", "a/b/x/b/c", True),
        ("a/**/b/**/c", "a/x/c", False),
        ("{a,b}/{1..3}.txt", "b/2.txt", True),
        ("{a,b}/{1..3}.txt", "b/4.txt", False),
        ("{a,{b,c}}.txt", "c.txt", True),
        ("{a}.txt", "{a}.txt", True),
        ("{a,b", "{a,b", True),
        ("{{a,b}", "{b", True),
        ("{a,b}}", "b}", True),
        (r"\{a,b}", "{a,b}", True),
        ("{c..a}", "b", True),
        ("x{,.bak}", "x", True),
        ("[[:digit:]]", "7", True),
        ("[!a-c]", "b", False),
        ("[]a]", "]", True),
        ("[a", "[a", True),
        ("[a-]", "-", True),
        (r"\*.txt", "*.txt", True),
        (r"\*.txt", "a.txt", False),
        ("@(a|b).ts", "b.ts", True),
        ("?(a)b", "b", True),
        ("*(ab)c", "ababc", True),
        ("+(ab)c", "c", False),
        ("+(a|b)c", "abbac", True),
        ("!(*.test).ts", "a.test.ts", False),
        ("!(*.test).ts", "a.ts", True),
        ("!(a)*", "a", True),
        ("!(a)*", "ab", False),
        ("@(a", "@(a", True),
        ("a//b", "a/b", True),
        ("a/./b", "a/b", True),
        ("a/", "a", False),
        ("*", ".env", False),
        (".*", ".env", True),
        ("?env", ".env", False),
        ("[.]env", ".env", False),
        ("😀?.txt", "😀é.txt", True),
    ],
)
def test_rest_of_the_syntax(pattern: str, path: str, matches: bool) -> None:
    assert Glob(pattern).matches(path) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "+(*(a))b",
        "*a*a*a*a*a*a*a*a*a*b",
        "*(*(*(*(a))))b",
        "!(!(!(!(a*))))b",
        "**/a/**/a/**/a/**/a/**/a/b",
        "*(*(*(*(*(a)a)a)a)a)b",
    ],
)
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    """Each of these hangs a backtracking matcher; here the test's timeout would tell."""
    path = "a/" * 60 + "c" if "/" in pattern else "a" * 200
    assert not Glob(pattern).matches(path)


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[b-a]", "/", "/**/", "**/", "\\*", "-", "\n"]),
        max_size=9,
    ),
    st.lists(st.text("ab.*-\n", min_size=1, max_size=6), min_size=1, max_size=4),
)
def test_a_plain_pattern_is_matched_as_any_other(parts: list[str], names: list[str]) -> None:
    """By a regular expression, where others go from position to position: the group that is added changes only that."""
    pattern, path = "".join(parts), "/".join(names)
    if "/" in pattern and not pattern.endswith(("/", "**")):
        assert Glob(pattern).matches(path) is Glob(f"{pattern}+()").matches(path)


@pytest.mark.parametrize(
    "pattern", ["{a,b}" * 20, "{1..99999999}", "@(" * 1000, "{a,b}" * 9 + "{[\\]" * 1000, "x" * 100_000]
)
def test_a_pattern_without_measure_is_refused(pattern: str) -> None:
    with pytest.raises(BadGlob):
        Glob(pattern)
