"""Stop strings over piece boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.text.stop_matcher import StopMatcher


def _run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include_stop=include)
    shown = []
    for piece in pieces:
        text, stop = matcher.feed(piece)
        shown.append(text)
        if stop is not None:
            return shown, stop
    return [*shown, matcher.flush()], None


def test_a_stop_over_three_pieces_never_leaks() -> None:
    assert _run(["red red red"], [" red", " red", " red", " red"]) == ([" ", "", ""], "red red red")


def test_a_near_miss_is_released_once() -> None:
    assert _run(["red blue"], [" red", " red", " x"]) == ([" ", "red ", "red x", ""], None)


def test_only_what_can_become_a_match_is_held() -> None:
    assert _run(["<|very long stop string|>"], ["abc", "def<", "ghi"])[0] == ["abc", "def", "<ghi", ""]


def test_the_match_that_completes_first_wins_and_ties_go_by_order() -> None:
    assert _run(["abcd", "bc"], ["xabcdy"]) == (["xa"], "bc")
    assert _run(["abc", "bc"], ["xabcd"]) == (["x"], "abc")
    assert _run(["bc", "abc"], ["xabcd"]) == (["xa"], "bc")


def test_include_keeps_the_stop_and_nothing_after() -> None:
    assert _run(["END"], ["one E", "ND two"], include=True) == (["one ", "END"], "END")


def test_overlapping_beginnings() -> None:
    assert _run(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], "aab")
    assert _run(["abab"], ["abaabab"]) == (["aba"], "abab")


def test_not_armed_a_stop_is_text_but_its_end_may_begin_another() -> None:
    matcher = StopMatcher(["aa"])
    assert matcher.feed("aa", is_armed=False) == ("a", None)
    assert matcher.feed("a") == ("", "aa")


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_everything_passes(stops: list[str]) -> None:
    assert _run(stops, ["a", "b"]) == (["a", "b", ""], None)


_TEXT = st.text("ab", max_size=14)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(_TEXT, max_size=6), st.booleans())
def test_pieces_give_what_a_plain_search_gives(stops: list[str], pieces: list[str], include: bool) -> None:
    text = "".join(pieces)
    ends = [(text.find(stop) + len(stop), number) for number, stop in enumerate(stops) if stop in text]
    shown, stop = _run(stops, pieces, include)
    if not ends:
        assert ("".join(shown), stop) == (text, None)
        return
    end, number = min(ends)
    assert stop == stops[number]
    assert "".join(shown) == text[: end if include else end - len(stop)]
