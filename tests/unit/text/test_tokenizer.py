"""Text ↔ ids, exact bytes, and look-alikes of control tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.baked_model import BakedModel
from appliance.errors import ApplianceError
from appliance.text.control_text import LookalikeMarker, unmark
from appliance.text.tokenizer import Tokenizer
from tests.unit.text.conftest import make_byte_level, make_sentencepiece

BYTE_LEVEL, SENTENCEPIECE = make_byte_level(), make_sentencepiece()
BOTH = [BYTE_LEVEL, SENTENCEPIECE]
TEXTS = ["", " ", "Hello world", "  two", "你好 😀 été\n\n\t", "a    b", "x\r\ny", "12345 red red"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@pytest.mark.parametrize("text", [t for t in TEXTS if t])
def test_token_bytes_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    joined = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, add_special_tokens=False)))
    assert joined.decode()[tokenizer.leading_spaces :] == text


def test_token_bytes_of_parts_of_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀", add_special_tokens=False)[-4:]
    assert b"".join(map(tokenizer.token_bytes, ids)).endswith("😀".encode())
    assert all(tokenizer.token_bytes(id) for id in ids)


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    for id in (tokenizer.vocab_size, 10**9, -1, 2**40):
        assert tokenizer.token_bytes(id) == b""
        assert tokenizer.token_str(id) == ""
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1)


def test_special_tokens_are_spelled_out_or_skipped() -> None:
    ids = BYTE_LEVEL.encode("<|im_start|>red<|im_end|>", add_special_tokens=True)
    assert ids[0] == 1
    assert ids[-1] == 2 == BYTE_LEVEL.eos_token_id
    assert BYTE_LEVEL.decode(ids) == "red"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<|im_start|>red<|im_end|>"
    assert BYTE_LEVEL.token_bytes(2) == b"<|im_end|>"


def test_bos_is_added_once_where_the_config_says_so() -> None:
    assert SENTENCEPIECE.encode("red", add_special_tokens=True)[0] == SENTENCEPIECE.bos_token_id == 1
    assert SENTENCEPIECE.encode("red", add_special_tokens=False)[0] != 1
    assert SENTENCEPIECE.encode("<s>red", add_special_tokens=True).count(1) == 1
    assert make_sentencepiece(add_bos_token=False).encode("red", add_special_tokens=True)[0] != 1
    assert make_sentencepiece(add_eos_token=True).encode("red", add_special_tokens=True)[-1] == 2


def test_the_post_processor_counts_where_the_config_is_silent() -> None:
    from tokenizers import processors

    backend = make_byte_level()._backend
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    config = {"bos_token": "<|endoftext|>"}
    assert Tokenizer(backend, config).encode("red", add_special_tokens=True)[0] == 0
    assert Tokenizer(backend, config | {"add_bos_token": False}).encode("red", add_special_tokens=True)[0] != 0


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b", add_special_tokens=False)) == "a\ufffdb"


def test_load_names_the_file_that_is_broken(tmp_path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ApplianceError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(BakedModel(tmp_path))
    BYTE_LEVEL._backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(BakedModel(tmp_path)).vocab_size == BYTE_LEVEL.vocab_size


def _marked(tokenizer: Tokenizer, text: str) -> str:
    marked: str = LookalikeMarker(tokenizer.added_tokens).mark(text)
    return marked


@pytest.mark.parametrize("token", ["<|im_end|>", "<tool_call>", "</think>"])
def test_look_alikes_are_text_and_the_templates_tokens_are_not(token: str) -> None:
    id = BYTE_LEVEL.token_id(token)
    user = f"please write {token} and {token}{token}!"
    rendered = f"{token}{_marked(BYTE_LEVEL, user)}{token}"
    ids = BYTE_LEVEL.encode_chat(rendered)
    assert [i for i, other in enumerate(ids) if other == id] == [0, len(ids) - 1]
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == f"{token}{user}{token}"


def test_look_alikes_in_sentencepiece_get_no_extra_blank() -> None:
    rendered = f"<s>{_marked(SENTENCEPIECE, 'red </s> red')}</s>"
    ids = SENTENCEPIECE.encode_chat(rendered)
    assert ids.count(2) == 1
    assert ids[0] == 1
    assert SENTENCEPIECE.decode(ids, skip_special_tokens=False) == "<s> red </s> red</s>"


def test_a_mark_that_lost_its_partner_still_protects() -> None:
    rendered = _marked(BYTE_LEVEL, "<|im_end|>")
    for cut in (rendered[:-1], rendered[1:]):
        assert 2 not in BYTE_LEVEL.encode_chat(cut)


def test_forged_marks_are_dropped() -> None:
    marked = _marked(BYTE_LEVEL, "\ufdd1<|im_end|>\ufdd0 \ufdd2" + "2\ufdd3")
    ids = BYTE_LEVEL.encode_chat(f"<|im_start|>{marked}")
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<|im_start|><|im_end|> 2"
    assert [id for id in ids if id in BYTE_LEVEL.special_token_ids] == [1]


def test_look_alikes_in_another_case_are_marked_too() -> None:
    assert 2 not in BYTE_LEVEL.encode_chat(_marked(BYTE_LEVEL, "<|IM_END|>").lower())


_CHAT_TEXT = st.text(st.sampled_from("ab <|im_end|>\n你😀 red"), max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(BOTH), st.lists(_CHAT_TEXT, min_size=1, max_size=4))
def test_ordinary_text_has_the_ids_of_the_whole_string(tokenizer: Tokenizer, texts: list[str]) -> None:
    start, end = ("<|im_start|>", "<|im_end|>") if tokenizer is BYTE_LEVEL else ("<s>", "</s>")
    rendered = "".join(f"{start}{text}{end}\n" for text in texts)
    if not any(token in text for text in texts for token in (start, end)):
        assert tokenizer.encode_chat(rendered) == tokenizer.encode(rendered, add_special_tokens=False)
        # The same through the path for marked text: its only look-alike is at the very end.
        whole = tokenizer.encode_chat(rendered + start + _marked(tokenizer, end))
        plain = tokenizer.encode(rendered + start, add_special_tokens=False)
        assert whole[: len(plain)] == plain


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(BOTH), st.lists(st.sampled_from(["<|im_end|>", "</s>", "<s>", " ", "a", "|>", "<"]), max_size=9))
def test_user_text_never_yields_special_ids(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = tokenizer.encode_chat(_marked(tokenizer, text))
    assert not tokenizer.special_token_ids.intersection(ids)
    assert tokenizer.decode(ids) == text
    assert unmark(_marked(tokenizer, text)) == text
