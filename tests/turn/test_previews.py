"""A long text's beginning and end: whole characters, within the bytes that there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod_host import limits
from pod_host.contract.encoding import encode
from pod_host.turn.media_types import OTHER, media_type_of, suffix_of
from pod_host.turn.previews import fitting_prefix, preview

any_text = st.text(alphabet=st.characters(), min_size=1, max_size=40).map(lambda text: text * 500)


@given(any_text, st.integers(0, 40_000))
def test_a_preview_always_fits_and_keeps_whole_characters_of_both_ends(text: str, most: int) -> None:
    shown = preview(text, most)
    assert len(encode(shown)) - 2 <= most
    said = text.encode("utf-8", "backslashreplace").decode()
    if shown == said:
        return
    head, between, tail = shown.partition("\n…\n") if "\n…\n" in shown else (shown, "", "")
    if between and "\n…\n" not in said:
        assert said.startswith(head)
        assert said.endswith(tail)
    assert len(shown.encode()) <= limits.RESULT_PREVIEW_BYTES + len("\n…\n".encode())


def test_a_preview_is_four_parts_of_the_beginning_and_one_of_the_end() -> None:
    text = "".join(f"{n} " for n in range(100_000))
    head, tail = preview(text, 10**6).split("\n…\n")
    assert (len(head), len(tail)) == (4096, 1024)
    assert text.startswith(head)
    assert text.endswith(tail)


def test_a_short_text_is_its_own_preview() -> None:
    assert preview("äöü" * 500, 10**6) == "äöü" * 500
    assert preview("", 10) == ""


@given(any_text, st.integers(0, 3000))
def test_a_prefix_is_the_longest_that_fits(text: str, most: int) -> None:
    shown = fitting_prefix(text, most)
    assert text.startswith(shown)
    assert len(encode(shown)) - 2 <= most
    if len(shown) < len(text):
        assert len(encode(text[: len(shown) + 1])) - 2 > most


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a/b.PNG", "image/png"),
        ("x.tar.gz", "application/gzip"),
        ("report.md", "text/markdown"),
        ("md", OTHER),
        ("a.md/b", OTHER),
        ("", OTHER),
    ],
)
def test_a_name_says_what_a_file_is(name: str, media_type: str) -> None:
    assert media_type_of(name) == media_type


def test_a_media_type_gives_the_usual_ending() -> None:
    named = ["image/jpeg", "text/plain; charset=utf-8", "text/x-new", "application/x-new"]
    assert [suffix_of(media_type) for media_type in named] == ["jpg", "txt", "txt", "bin"]
