"""Fields that are made of token ids or become such: checked against the vocabulary, with every fault named."""

from __future__ import annotations

from typing import Any

from appliance.api.fields import refuse
from appliance.api.served_model import ServedModel

MAX_LOGIT_BIAS = 100
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
MAX_BAD_WORD_CHARS = 32_768
_MAX_SHOWN = 10


def check_token_ids(param: str, token_ids: list[int], vocab_size: int) -> None:
    """Raises InvalidRequestError unless every id is in the vocabulary."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token for token in token_ids if not 0 <= token < vocab_size)
        raise refuse(param, f"has the token id {str(wrong)[:24]}, which is not between 0 and {vocab_size - 1}")


def read_logit_bias(bias: dict[str, Any] | None, vocab_size: int) -> dict[int, float]:
    """Keys are token ids written as strings. Raises InvalidRequestError that names the bad entries, the first ten."""
    read: dict[int, float] = {}
    problems: list[str] = []
    for key, value in (bias or {}).items():
        if len(problems) >= _MAX_SHOWN:
            break
        shown = key[:24]
        if not (key.isascii() and key.isdecimal() and len(key) < 20 and int(key) < vocab_size):
            problems.append(f"key {shown!r} is not a token id between 0 and {vocab_size - 1}")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > MAX_LOGIT_BIAS:
            problems.append(f"the value of {shown!r} is not a number between -{MAX_LOGIT_BIAS} and {MAX_LOGIT_BIAS}")
        else:
            read[int(key)] = float(value)
    if problems:
        raise refuse("logit_bias", "is wrong: " + "; ".join(problems))
    return read


def encode_bad_words(words: list[str], model: ServedModel) -> list[list[int]]:
    """Each word as it is spelled at the start of a text and after a space. Raises InvalidRequestError."""
    if len(words) > MAX_BAD_WORDS or not all(words):
        raise refuse("bad_words", f"must be at most {MAX_BAD_WORDS} words, none of them empty")
    if sum(map(len, words)) > MAX_BAD_WORD_CHARS:
        raise refuse("bad_words", f"must have at most {MAX_BAD_WORD_CHARS} characters together")
    runs: list[list[int]] = []
    for word in words:
        for spelling in (word, " " + word.lstrip()):
            run = model.tokenizer.encode(spelling, add_special_tokens=False)
            if run and run not in runs:
                runs.append(run)
    if sum(map(len, runs)) > MAX_BAD_WORD_TOKENS:
        raise refuse("bad_words", f"must have at most {MAX_BAD_WORD_TOKENS} tokens together")
    return runs
