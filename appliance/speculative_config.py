"""The value of --speculative-config: vLLM's JSON object for n-gram drafts. What is wrong with it, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_DRAFT_TOKENS, MAX_LOOKUP_TOKENS, MAX_ROWS = 64, 64, 4096
_LOOKUP_MIN, _LOOKUP_MAX = 2, 5
_NUMBERS = {
    # key: largest value; the smallest is 1
    "num_speculative_tokens": MAX_DRAFT_TOKENS,
    "prompt_lookup_max": MAX_LOOKUP_TOKENS,
    "prompt_lookup_min": MAX_LOOKUP_TOKENS,
    "disable_by_batch_size": MAX_ROWS,
}
_KEYS = ("method", *_NUMBERS, "adaptive")


def check_speculative_config(value: Mapping[str, Any]) -> str | None:
    """What is wrong with it, in one line; None where nothing is."""
    unknown = sorted(value.keys() - set(_KEYS))
    if unknown:
        return f"{unknown[0]} is not one of {', '.join(_KEYS)}"
    if value.get("method") != "ngram":
        return f"method must be ngram (prompt lookup), not {value.get('method')!r}"
    if "num_speculative_tokens" not in value:
        return f"num_speculative_tokens is missing: the most draft tokens a step checks, 1 to {MAX_DRAFT_TOKENS}"
    problems = [_check_number(value, key) for key in _NUMBERS if value.get(key) is not None]
    if "adaptive" in value and not isinstance(value["adaptive"], bool):
        problems.append(f"adaptive must be true or false, not {value['adaptive']!r}")
    return next(filter(None, problems), None) or _check_lookup(value)


def lookup_lengths(value: Mapping[str, Any]) -> tuple[int, int]:
    """prompt_lookup_min and prompt_lookup_max. Where only one is given, the other is the same, as in vLLM."""
    fewest, most = value.get("prompt_lookup_min"), value.get("prompt_lookup_max")
    return int(fewest or most or _LOOKUP_MIN), int(most or fewest or _LOOKUP_MAX)


def _check_number(value: Mapping[str, Any], key: str) -> str | None:
    number, most = value[key], _NUMBERS[key]
    if type(number) is int and 1 <= number <= most:
        return None
    return f"{key} must be a whole number from 1 to {most}, not {number!r}"


def _check_lookup(value: Mapping[str, Any]) -> str | None:
    fewest, most = lookup_lengths(value)
    return f"prompt_lookup_min {fewest} is more than prompt_lookup_max {most}" if fewest > most else None
