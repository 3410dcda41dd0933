"""StopMatcher: what is held back, which stop string wins, and that the cut into pieces does not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lucebox.errors import InvalidRequestError
from lucebox.text import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        text, hit = matcher.push(piece)
        out += text
        if hit is not None:
            return out, hit
    return out + matcher.finish(), None


def test_holds_back_only_a_possible_start() -> None:
    matcher = StopMatcher(["</end>", "STOP"])
    assert matcher.push("some text <") == ("some text ", None)
    assert matcher.push("/en") == ("", None)
    assert matcher.push("tity>ST") == ("</entity>", None)
    assert matcher.finish() == "ST"
    assert matcher.finish() == ""


def test_a_start_inside_a_failed_start() -> None:
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")


@pytest.mark.parametrize("pieces", [["xabcd"], list("xabcd"), ["xab", "cd"]])
def test_first_complete_wins(pieces: list[str]) -> None:
    assert run(["abcd", "bc"], pieces) == ("xa", "bc")
    assert run(["bcd", "abcd"], pieces) == ("x", "abcd")


def test_no_stop_strings_hold_nothing() -> None:
    assert StopMatcher([]).push("text") == ("text", None)


@pytest.mark.parametrize("bad", ["", 3, None])
def test_a_stop_string_is_text(bad: object) -> None:
    with pytest.raises(InvalidRequestError, match="non-empty"):
        StopMatcher([bad])  # type: ignore[list-item]


SHORT = st.text("ab", min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(st.lists(SHORT, max_size=3), st.lists(SHORT, max_size=8))
def test_pieces_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    assert run(stops, pieces) == run(stops, [text]) == run(stops, list(text))
    out, hit = run(stops, pieces)
    if hit is None:
        assert out == text and not any(stop in text for stop in stops)
    else:
        assert text.startswith(out + hit) and not any(stop in (out + hit)[:-1] for stop in stops)
