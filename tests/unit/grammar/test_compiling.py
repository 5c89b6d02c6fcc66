"""Grammars are compiled beside the busy loop; what is wrong with one is told to its own request only."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import engine.grammar.compiler as compiler
from engine.grammar.cache import GrammarCache
from engine.messages import Grammar
from tests.unit.grammar.builders import Engine, make_request, schema_grammar

HEAVY = {"type": "object", "properties": {f"property_{index}": {"type": "string"} for index in range(2000)}}


def error_of(engine: Engine, grammar: Grammar) -> str:
    output = engine.run_one(grammar, max_tokens=8)
    assert output.finish_reason == "error"
    assert output.error_param == grammar.param
    assert output.error is not None
    assert output.error.startswith(grammar.param)
    assert "\n" not in output.error
    return output.error


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt", "properties": 5}, "properties must be an object"),
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}, "required": ["a"]}, "unclosed"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "array", "uniqueItems": True}, "not supported in a JSON schema: uniqueItems"),
        ({"type": "array", "contains": {}, "minContains": 2}, "contains"),
        ({"not": {"type": "string"}}, "not supported in a JSON schema: not"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "string", "format": "nonsense"}, "format"),
        ({"$ref": "#/$defs/missing"}, "does not exist"),
        ({"$ref": "http://example.com/schema.json"}, "not present"),
        ({"$ref": "#"}, "allows no answer"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"enum": []}, "Unsatisfiable"),
        (False, "must be a JSON schema"),
        ([1], "must be a JSON schema"),
    ],
)
def test_b38_broken_schemas_are_named_and_the_engine_lives(engine: Engine, schema: Any, words: str) -> None:
    assert words in error_of(engine, schema_grammar(schema))
    assert engine.run_one(schema_grammar({"const": 1}), max_tokens=8).finish_reason == "stop"


def test_b38_bounds_beyond_what_doubles_hold(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9007199254740993000}}}
    assert engine.run_one(schema_grammar(schema), max_tokens=32).error is None
    assert "range" in error_of(engine, Grammar(kind="json_schema", source='{"maximum": 1' + "0" * 400 + "}"))


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("regex", "([", "unclosed"),
        ("regex", "(?<=a)b", "look"),
        ("lark", "nonsense", ""),
        ("lark", "start: missing", "missing"),
        ("ebnf", "root ::= missing", "missing"),
        ("ebnf", "other ::= [a-z]", "root"),
        ("ebnf", "(" * 5000, ""),
        ("structural_tag", "{}", "structures"),
        ("structural_tag", '{"format": {"type": "nonsense"}}', "format.type"),
        ("nonsense", "", "unknown kind"),
        ("choice", "[]", "at least one"),
    ],
)
def test_broken_grammars_of_other_kinds(engine: Engine, kind: str, source: str, words: str) -> None:
    assert words in error_of(engine, Grammar(kind=kind, source=source))


def test_sizes_are_bounded(engine: Engine) -> None:
    assert "limit" in error_of(engine, Grammar(kind="regex", source="a" * (1 << 20) + "b"))
    assert "limit" in error_of(engine, Grammar(kind="ebnf", source="a" * (1 << 16) + "b"))
    many = {"enum": [f"value number {index * 7919}" for index in range(60_000)]}
    assert "cannot be compiled" in error_of(engine, Grammar(kind="json_schema", source=json.dumps(many)[: 1 << 20]))


def test_what_is_known_starts_at_once_and_errors_too(engine: Engine) -> None:
    good, bad = schema_grammar({"const": "known"}), schema_grammar({"type": "array", "uniqueItems": True})
    engine.run_one(good)
    error_of(engine, bad)
    assert engine.core.add(make_request(good, "again")) is None
    assert engine.core.has_work()
    assert {output.request_id for output in engine.core.step()} == {"again"}
    engine.core.abort(["again"])
    refusal = engine.core.add(make_request(bad, "bad"))
    assert refusal is not None
    assert refusal.error_param == "response_format"


def test_others_flow_while_a_grammar_is_compiled(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = Engine(smollm2), threading.Event()
    compile_grammar = compiler.compile_grammar

    def slowly(*args: Any) -> Any:
        assert gate.wait(20)
        return compile_grammar(*args)

    monkeypatch.setattr(compiler, "compile_grammar", slowly)
    engine.core.add(make_request(schema_grammar({"const": 1}), "first"))
    assert not engine.core.has_work(), "the busy loop must sleep, not spin"
    engine.core.add(make_request(None, "behind", max_tokens=5))
    for _ in range(5):
        assert engine.core.has_work()
        assert [output.request_id for output in engine.core.step()] == ["behind"]
        assert engine.core._scheduler.num_deferred == 1
    assert not engine.core.has_work()
    gate.set()
    assert [output.request_id for output in engine.step()] == ["first"]


def test_an_aborted_request_leaves_nothing_behind(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = Engine(smollm2), threading.Event()
    compile_grammar = compiler.compile_grammar
    monkeypatch.setattr(compiler, "compile_grammar", lambda *args: compile_grammar(*args) if gate.wait(20) else "")
    engine.core.add(make_request(schema_grammar({"const": 1}), "gone"))
    assert [output.finish_reason for output in engine.core.abort(["gone"])] == ["abort"]
    gate.set()
    again = make_request(schema_grammar({"const": 2}), "gone")
    assert engine.run(again)["gone"].token_ids == [34]
    assert not engine.core.has_work()


def test_a_grammar_that_takes_too_long_is_given_up(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = Engine(smollm2), threading.Event()
    engine.core._grammars.compiler.max_compile_s = 0.05
    monkeypatch.setattr(compiler, "compile_grammar", lambda *args: "late" if gate.wait(20) else "")
    output = engine.run_one(schema_grammar({"const": 1}))
    assert output.error == "response_format takes longer than 0.05 s to compile"
    gate.set()


class Panic(BaseException):
    """As what a fault in Rust arrives in Python."""


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_a_fault_in_the_compiler_is_the_requests_error(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    engine = Engine(smollm2)

    def explode(*args: Any) -> Any:
        raise kind("a fault")

    monkeypatch.setattr(compiler, "compile_grammar", explode)
    assert engine.run_one(schema_grammar({"const": 1})).error == "response_format cannot be compiled"
    monkeypatch.undo()
    assert engine.run_one(schema_grammar({"const": 1})).token_ids == [33]


def test_what_is_too_complex_to_be_followed_is_refused_before_it_begins(engine: Engine) -> None:
    huge = {"type": "object", "properties": {f"property_{index}": {"type": "string"} for index in range(4000)}}
    assert "cannot be compiled" in error_of(engine, schema_grammar(huge | {"additionalProperties": False}))


def test_a_heavy_schema_is_compiled_and_its_first_mask_is_ready(engine: Engine) -> None:
    assert engine.run_one(schema_grammar(HEAVY), max_tokens=3).error is None


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"model": {"type": "Unigram"}}'])
def test_a_model_without_a_usable_tokenizer_still_serves(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    engine = Engine(tmp_path)
    assert "not available" in error_of(engine, schema_grammar({"const": 1}))
    assert engine.run_one(None, max_tokens=2).finish_reason == "length"


def test_the_cache_is_bounded_by_count_and_bytes() -> None:
    cache = GrammarCache(max_entries=2, max_source_bytes=10)
    for name in ("a", "b", "c"):
        cache.put(("regex", name, None), name)
    assert [cache.get(("regex", name, None)) for name in ("a", "b", "c")] == [None, "b", "c"]
    cache.get(("regex", "b", None))
    cache.put(("regex", "d", None), "d")
    assert cache.get(("regex", "c", None)) is None
    cache.put(("regex", "x" * 9, None), "x")
    assert len(cache) == 2
    cache.put(("regex", "y" * 11, None), "too large to keep")
    assert len(cache) == 0
