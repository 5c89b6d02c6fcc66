"""Whatever the schema and whatever the model wants: an answer that stopped is valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.messages import RequestOutput
from tests.unit.grammar.builders import Engine, schema_grammar
from tests.unit.grammar.schemas import schemas

SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def validate(output: RequestOutput, schema: dict[str, Any], tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(output.token_ids, skip_special_tokens=False)
    assert "<|im_end|>" not in text
    assert "\ufffd" not in text
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def whitespace_outside_strings(text: str) -> int:
    """The longest run."""
    longest = run = 0
    is_inside = is_escaped = False
    for character in text:
        if is_inside:
            is_escaped, is_inside = character == "\\" and not is_escaped, character != '"' or is_escaped
            continue
        is_inside = character == '"'
        run = run + 1 if character.isspace() else 0
        longest = max(longest, run)
    return longest


@SETTINGS
@given(schema=schemas(), seed=st.integers(0, 1000))
def test_answers_that_stop_are_valid(engine: Engine, tokenizer: Tokenizer, schema: Any, seed: int) -> None:
    output = engine.run_one(schema_grammar(schema), seed=seed, max_tokens=1500)
    assert output.error is None, (output.error, schema)
    assert output.finish_reason == "stop", "random tokens that prefer to close come to an end"
    assert output.ends_in_text, "nothing may follow the last brace, not even EOS"
    validate(output, schema, tokenizer)
    assert whitespace_outside_strings(tokenizer.decode(output.token_ids)) <= 16


@settings(SETTINGS, max_examples=15)
@given(schema=schemas(), seed=st.integers(0, 1000))
def test_a_resumed_answer_is_the_same(engine: Engine, schema: Any, seed: int) -> None:
    whole = engine.run_one(schema_grammar(schema), seed=seed, max_tokens=60)
    for position in range(1, len(whole.token_ids) + 1):
        resumed = whole.token_ids[:position]
        rest = engine.run_one(schema_grammar(schema), seed=seed, max_tokens=60, resumed_token_ids=resumed)
        assert resumed + rest.token_ids == whole.token_ids
        assert (rest.finish_reason, rest.ends_in_text) == (whole.finish_reason, whole.ends_in_text)


def test_a_preempted_answer_is_the_same(smollm2: Any, tokenizer: Tokenizer) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 12, "maxItems": 12}
    grammar = schema_grammar(schema)
    roomy, tight = Engine(smollm2), Engine(smollm2, num_blocks=24, max_model_len=384)
    from tests.unit.grammar.builders import make_request

    requests = [make_request(grammar, f"r{seed}", seed=seed, max_tokens=300) for seed in range(6)]
    expected = {request.request_id: roomy.run(request)[request.request_id].token_ids for request in requests}
    outputs = tight.run(*requests)
    assert {name: output.token_ids for name, output in outputs.items()} == expected
    assert "vllm:num_preemptions_total" in tight.core.metrics.render()
    assert 'num_preemptions_total{engine="0",model_name="model"} 0.0' not in tight.core.metrics.render()
    for output in outputs.values():
        validate(output, schema, tokenizer)
