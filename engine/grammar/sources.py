"""A `Grammar` as the caller gave it → the text that llguidance compiles. Raises ValueError with a line for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.grammar.structural_tags import tags_to_lark
from engine.messages import Grammar

MAX_SOURCE_CHARS = 1 << 20
MAX_CONVERTED_CHARS = 1 << 16  # EBNF and structural tags are converted in Python
DEFAULT_WHITESPACE = r"[ \n\r\t]{0,16}"  # a model that likes white space must not drown in it


def to_llguidance(grammar: Grammar) -> str:
    """The grammar in llguidance's own form; whether it makes sense is found out when it is compiled."""
    if len(grammar.source) > MAX_SOURCE_CHARS:
        raise ValueError(f"has {len(grammar.source)} characters, more than the limit of {MAX_SOURCE_CHARS}")
    convert = _CONVERTERS.get(grammar.kind)
    if convert is None:
        raise ValueError(f"has the unknown kind {grammar.kind[:32]!r}")
    return convert(grammar)


def whitespace_options(whitespace: str | None) -> dict[str, Any]:
    """llguidance's options for the white space between JSON's tokens."""
    if whitespace == "":
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": DEFAULT_WHITESPACE if whitespace is None else whitespace}


def _json_schema(grammar: Grammar) -> str:
    schema = json.loads(grammar.source)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError("must be a JSON schema: an object")
    schema.pop("x-guidance", None)  # the compiler's own options are not the caller's to set
    options = whitespace_options(grammar.whitespace)
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]
    except ValueError:  # all that can be wrong with valid JSON at this point
        raise ValueError("has a number that is out of range") from None


def _choice(grammar: Grammar) -> str:
    choices = json.loads(grammar.source)
    if not choices:
        raise ValueError("must have at least one choice")
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return LLMatcher.grammar_from_lark(f"start: {alternatives}")


def _regex(grammar: Grammar) -> str:
    return LLMatcher.grammar_from_regex(grammar.source)


def _lark(grammar: Grammar) -> str:
    return LLMatcher.grammar_from_lark(grammar.source)


def _ebnf(grammar: Grammar) -> str:
    _check_convertible(grammar.source)
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.source))
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except Exception as error:  # the converter raises bare exceptions
        raise ValueError(f"is not a grammar: {error}") from None


def _structural_tag(grammar: Grammar) -> str:
    _check_convertible(grammar.source)
    return LLMatcher.grammar_from_lark(tags_to_lark(json.loads(grammar.source), whitespace_options(grammar.whitespace)))


def _check_convertible(source: str) -> None:
    if len(source) > MAX_CONVERTED_CHARS:
        raise ValueError(f"has {len(source)} characters, more than the limit of {MAX_CONVERTED_CHARS}")


_CONVERTERS: dict[str, Callable[[Grammar], str]] = {
    "json_schema": _json_schema,
    "choice": _choice,
    "regex": _regex,
    "lark": _lark,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}
