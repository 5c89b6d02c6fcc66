"""Streaming decode equals whole decode, whole characters only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.text.detokenizer import Detokenizer
from appliance.text.tokenizer import Tokenizer
from tests.unit.text.conftest import make_byte_level, make_sentencepiece

BYTE_LEVEL, SENTENCEPIECE = make_byte_level(), make_sentencepiece()


def _deltas(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=40), st.booleans())
def test_deltas_of_random_ids_concatenate_to_the_librarys_decode(ids: list[int], skip: bool) -> None:
    text = "".join(_deltas(BYTE_LEVEL, ids, skip_special_tokens=skip))
    assert text == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert text == BYTE_LEVEL._backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, SENTENCEPIECE.vocab_size + 3), max_size=40), st.booleans())
def test_deltas_of_random_sentencepiece_ids_concatenate_to_the_whole(ids: list[int], skip: bool) -> None:
    text = "".join(_deltas(SENTENCEPIECE, ids, skip_special_tokens=skip))
    assert text == SENTENCEPIECE.decode(ids, skip_special_tokens=skip)
    whole = SENTENCEPIECE._backend.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in whole:  # the library replaces valid characters next to broken bytes as well
        assert text == whole


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([BYTE_LEVEL, SENTENCEPIECE]), st.text(max_size=40))
def test_no_fragments_of_characters(tokenizer: Tokenizer, text: str) -> None:
    text = text.replace("\ufffd", "").encode("utf-8", "ignore").decode()
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas = _deltas(tokenizer, ids, skip_special_tokens=False)
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_an_emoji_comes_with_its_last_token() -> None:
    ids = BYTE_LEVEL.encode("🦊", add_special_tokens=False)
    assert len(ids) > 1
    assert _deltas(BYTE_LEVEL, ids) == [*[""] * (len(ids) - 1), "🦊", ""]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    ids = BYTE_LEVEL.encode("a🦊", add_special_tokens=False)[:-1]
    assert "".join(_deltas(BYTE_LEVEL, ids)) == "a\ufffd"


def test_broken_bytes_do_not_hold_back_what_follows() -> None:
    ids = BYTE_LEVEL.encode("🦊", add_special_tokens=False)[:1] + BYTE_LEVEL.encode("red", add_special_tokens=False)
    assert "".join(_deltas(BYTE_LEVEL, ids)) == "\ufffdred"


def test_the_blank_of_the_text_start_is_sentencepieces() -> None:
    ids = SENTENCEPIECE.encode("Hello world", add_special_tokens=False)
    assert "".join(_deltas(SENTENCEPIECE, ids)) == "Hello world"
    assert "".join(_deltas(SENTENCEPIECE, ids, is_text_start=False)) == " Hello world"
    assert SENTENCEPIECE.decode([1, *ids, 2]) == "Hello world"


@pytest.mark.parametrize("skip", [True, False])
def test_kept_special_tokens_are_shown(skip: bool) -> None:
    detokenizer = Detokenizer(BYTE_LEVEL, skip_special_tokens=skip, kept_special_ids=[1])
    assert "".join(map(detokenizer.push, [1, 2])) == ("<|im_start|>" if skip else "<|im_start|><|im_end|>")
