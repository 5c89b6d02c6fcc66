"""When a constrained answer ends, and what may come out of it beside and against the other sampling fields."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.grammar.masks import MaskMaker
from engine.messages import Grammar
from engine.step import StepRow
from tests.unit.grammar.builders import EOS, VOCAB_SIZE, Choose, Engine, draw_any, make_request, schema_grammar

INTEGER = schema_grammar({"type": "integer"})
NEWLINE = 198


def saying(tokenizer: Tokenizer, text: str) -> Choose:
    """Tokens that spell the text, then EOS."""
    script = [*tokenizer.encode(text).ids, EOS]

    def choose(row: StepRow, ids: np.ndarray) -> int:
        wanted = script[len(row.output_token_ids)]
        said = tokenizer.decode(row.output_token_ids)
        assert wanted in ids, f"{tokenizer.decode([wanted])!r} is not allowed after {said!r}"
        return wanted

    return choose


def say(engine: Engine, tokenizer: Tokenizer, text: str, grammar: Grammar, **fields: Any) -> str:
    """How an answer with this text ends; the text so far."""
    engine.runner.choose = saying(tokenizer, text)
    try:
        output = engine.run_one(grammar, **fields)
    finally:
        engine.core.abort(["r"])
        engine.runner.choose = draw_any
    assert output.finish_reason == "stop"
    return str(tokenizer.decode(output.token_ids, skip_special_tokens=True))


def test_stops_right_after_the_last_brace(engine: Engine, tokenizer: Tokenizer) -> None:
    steps = engine.runner.num_steps
    output = engine.run_one(schema_grammar({"const": {"a": 1}}))
    assert (output.finish_reason, output.stop_reason, output.ends_in_text) == ("stop", None, True)
    assert json.loads(tokenizer.decode(output.token_ids)) == {"a": 1}
    assert engine.runner.num_steps - steps == len(output.token_ids)


def test_stops_by_eos_where_more_could_follow(engine: Engine) -> None:
    output = engine.run_one(INTEGER, max_tokens=200)
    assert (output.finish_reason, output.ends_in_text, output.token_ids[-1]) == ("stop", False, EOS)


def test_a_cut_answer_claims_nothing(engine: Engine) -> None:
    assert engine.run_one(schema_grammar({"const": "a long constant string"}), max_tokens=2).finish_reason == "length"


def test_the_end_and_the_limit_at_once_is_a_stop(engine: Engine) -> None:
    length = len(engine.run_one(schema_grammar({"const": {"a": 1}}), seed=3).token_ids)
    output = engine.run_one(schema_grammar({"const": {"a": 1}}), seed=3, max_tokens=length)
    assert output.finish_reason == "stop"


def test_min_tokens_waits_where_there_is_more_to_say_and_never_hangs(engine: Engine) -> None:
    output = engine.run_one(INTEGER, min_tokens=50, max_tokens=500)
    assert output.finish_reason == "stop"
    assert len(output.token_ids) >= 50
    short = engine.run_one(schema_grammar({"const": 1}), min_tokens=50, max_tokens=500)
    assert (short.finish_reason, short.token_ids) == ("stop", [33])
    # Here the end is optional at first and the only possibility later.
    bounded = engine.run_one(Grammar(kind="regex", source="[0-9]{1,5}"), min_tokens=50)
    assert (bounded.finish_reason, len(bounded.token_ids)) == ("stop", 5)


def test_ignore_eos_goes_on_while_it_can(engine: Engine) -> None:
    assert engine.run_one(INTEGER, ignore_eos=True, max_tokens=40).finish_reason == "length"
    assert engine.run_one(schema_grammar({"const": 1}), ignore_eos=True).finish_reason == "stop"


def test_stop_ids_end_only_a_finished_answer(engine: Engine) -> None:
    pretty = schema_grammar({"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3})
    for seed in range(5):
        output = engine.run_one(pretty, stop_token_ids=[NEWLINE], seed=seed)
        assert (output.finish_reason, output.ends_in_text) == ("stop", True)
        assert NEWLINE not in output.token_ids
    seen = set()
    for seed in range(30):
        output = engine.run_one(INTEGER, stop_token_ids=[NEWLINE], seed=seed, max_tokens=300)
        seen.add(output.stop_reason)
        assert output.finish_reason == "stop"
    assert seen == {None, NEWLINE}, "beyond an answer that may end, the stop id is as good as EOS"


def test_a_stop_id_that_the_grammar_needs_is_text(engine: Engine) -> None:
    grammar = Grammar(kind="regex", source="a\nb")
    output = engine.run_one(grammar, stop_token_ids=[NEWLINE])
    assert (output.finish_reason, output.ends_in_text, output.stop_reason) == ("stop", True, None)
    assert NEWLINE in output.token_ids


def test_special_tokens_are_never_text(engine: Engine) -> None:
    seen: list[np.ndarray] = []

    def note(row: StepRow, ids: np.ndarray) -> int:
        seen.append(ids)
        return draw_any(row, ids)

    engine.runner.choose = note
    try:
        engine.run_one(schema_grammar({"type": "string"}), max_tokens=50)
    finally:
        engine.runner.choose = draw_any
    specials = set(range(17)) - {EOS}
    assert not any(specials & set(ids.tolist()) for ids in seen)
    assert not any(EOS in ids for ids in seen)


def test_several_requests_in_one_step_keep_their_own_states(engine: Engine, tokenizer: Tokenizer) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
    alone = {f"r{seed}": engine.run_one(schema_grammar(schema), seed=seed).token_ids for seed in range(12)}
    requests = [make_request(schema_grammar(schema), f"r{seed}", seed=seed) for seed in range(12)]
    together = engine.run(*requests, make_request(None, "free", max_tokens=30))
    assert {name: together[name].token_ids for name in alone} == alone
    assert len({tuple(ids) for ids in alone.values()}) > 1
    assert together["free"].finish_reason == "length"


def test_threads_make_the_same_masks(engine: Engine) -> None:
    requests = [make_request(schema_grammar({"type": "integer"}), f"r{seed}", seed=seed) for seed in range(40)]
    expected = {name: output.token_ids for name, output in engine.run(*requests).items()}
    grammars = engine.core._grammars
    masks, grammars._masks = grammars._masks, MaskMaker(VOCAB_SIZE, num_threads=3)
    try:
        assert {name: output.token_ids for name, output in engine.run(*requests).items()} == expected
    finally:
        grammars._masks = masks


def test_b40_whitespace_is_bounded_and_can_be_forbidden(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}

    def whitespace_first(row: StepRow, ids: np.ndarray) -> int:
        blank = [token_id for token_id in (NEWLINE, 216) if token_id in ids]
        return blank[0] if blank else int(ids[0])

    engine.runner.choose = whitespace_first
    try:
        closed = schema | {"additionalProperties": False}
        for grammar, most in (
            (schema_grammar(closed), 16),
            (schema_grammar(closed, whitespace=""), 0),
            (schema_grammar(closed, whitespace=r"[ \n]{0,2}"), 2),
        ):
            output = engine.run_one(grammar, max_tokens=200)
            assert output.finish_reason == "stop"
            runs = "".join("w" if token_id in (NEWLINE, 216) else "." for token_id in output.token_ids)
            assert max(map(len, runs.split("."))) == most
            assert not runs.endswith("w")
    finally:
        engine.runner.choose = draw_any


def test_json_object_is_an_object(engine: Engine, tokenizer: Tokenizer) -> None:
    for seed in range(10):
        output = engine.run_one(schema_grammar({"type": "object"}), seed=seed, max_tokens=3000)
        if output.finish_reason == "stop":
            assert isinstance(json.loads(tokenizer.decode(output.token_ids)), dict)


def test_b22_characters_over_several_tokens_come_out_whole(engine: Engine, tokenizer: Tokenizer) -> None:
    text = "你好，世界 😀"
    output = engine.run_one(schema_grammar({"enum": [text]}))
    assert json.loads(tokenizer.decode(output.token_ids)) == text


def test_what_the_vocabulary_cannot_spell_is_an_error_not_nonsense(engine: Engine) -> None:
    output = engine.run_one(schema_grammar({"enum": ["\U00040000"]}), max_tokens=30)
    assert output.finish_reason == "error"
    assert output.error_param == "response_format"
    assert engine.run_one(schema_grammar({"const": 1})).finish_reason == "stop"


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("choice", '["red", "green", "ü\\n\\"😀"]', 'ü\n"😀'),
        ("regex", r"[a-z]+@example\.com", "someone@example.com"),
        ("lark", 'start: "(" start ")" | "x"', "((x))"),
        ("ebnf", 'root ::= "yes" | "no, " reason\nreason ::= [a-z]+ "."', "no, because."),
    ],
)
def test_kinds(engine: Engine, tokenizer: Tokenizer, kind: str, source: str, text: str) -> None:
    assert say(engine, tokenizer, text, Grammar(kind=kind, source=source)) == text


LEGACY = {
    "structures": [
        {"begin": "<fn=a>", "schema": {"type": "object", "properties": {"q": {"type": "integer"}}}, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"const": 1}, "end": "</fn>"},
    ],
    "triggers": ["<fn="],
}
TAG = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {"const": 1}}, "end": "</a>"}


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (LEGACY, 'Hi! <fn=a>{"q": 1}</fn> and <fn=b>1</fn> bye', "<fn=c>"),
        (LEGACY, "no tags at all", '<fn=a>{"q": true}</fn>'),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<a"], "tags": [TAG], "at_least_one": True}},
            "x <a>1</a>",
            "<a>2</a>",
        ),
        (
            {"format": {"type": "tags_with_separator", "tags": [TAG], "separator": ", ", "at_least_one": True}},
            "<a>1</a>, <a>1</a>",
            "<a>1</a><a>1</a>",
        ),
        (
            {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "A: "}, TAG]}},
            "A: <a>1</a>",
            "<a>1</a>",
        ),
        (
            {"format": {"type": "or", "elements": [TAG, {"type": "regex", "pattern": "[0-9]+/x"}]}},
            "12/x",
            "x",
        ),
        (
            {"format": {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}},
            "<t>anything < at all</t>",
            "nothing",
        ),
    ],
)
def test_structural_tags(engine: Engine, tokenizer: Tokenizer, spec: Any, right: str, wrong: str) -> None:
    grammar = Grammar(kind="structural_tag", source=json.dumps(spec))
    assert say(engine, tokenizer, right, grammar) == right
    with pytest.raises(AssertionError, match="is not allowed"):
        say(engine, tokenizer, wrong, grammar)


def test_thinking_is_free_and_the_answer_after_it_is_not(engine: Engine, tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("</think>").ids

    def think(row: StepRow) -> int:
        return ([500, 600, *end] + [700] * 50)[len(row.output_token_ids)]

    grammar = schema_grammar({"const": 1}, starts_after=end)
    free, engine.runner._free = engine.runner._free, think
    try:
        output = engine.run_one(grammar, max_tokens=40)
        assert output.token_ids == [500, 600, *end, 33]
        assert output.ends_in_text
        resumed = engine.run_one(grammar, max_tokens=40, resumed_token_ids=output.token_ids[:4])
        assert output.token_ids[:4] + resumed.token_ids == output.token_ids
    finally:
        engine.runner._free = free


def test_thinking_that_the_model_may_open(engine: Engine) -> None:
    grammar = schema_grammar({"const": 1}, starts_after=[900], opens_with=5)

    def open_it(row: StepRow, ids: np.ndarray) -> int:
        return 5 if not row.output_token_ids else draw_any(row, ids)

    def think(row: StepRow) -> int:
        return 900 if len(row.output_token_ids) == 3 else 700

    free, engine.runner._free = engine.runner._free, think
    try:
        engine.runner.choose = open_it
        assert engine.run_one(grammar).token_ids == [5, 700, 700, 900, 33]
        engine.runner.choose = lambda row, ids: int(max(set(ids.tolist()) - {5}))
        assert engine.run_one(grammar).token_ids == [33]
    finally:
        engine.runner.choose, engine.runner._free = draw_any, free


def test_masks_of_rows_that_do_not_sample_are_not_made(engine: Engine) -> None:
    long_prompt = make_request(INTEGER, prompt_token_ids=list(range(100, 5100)), max_tokens=5)
    assert engine.run(long_prompt)["r"].error is None
