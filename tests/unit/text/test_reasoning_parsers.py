"""Every way of marking a model's thinking: whole, in pieces, and at every split point; and in front of tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.errors import ApplianceError
from appliance.text.output_parser import OutputParser
from appliance.text.reasoning_parsers import REASONING_PARSERS, get_reasoning_parser
from appliance.text.tool_parsers import get_tool_parser
from tests.unit.text.feeding import run, run_every_way

ON, OFF = {"thinking": True}, {"enable_thinking": False}
HARMONY = "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>"

CASES: list[tuple[str, str, dict[str, Any], str, str, str]] = [
    # parser, end of the prompt, template kwargs, text, reasoning, content
    ("think", "", {}, "<think>\nwhy\n\nthen\n</think>\n\nso\n", "why\n\nthen", "so\n"),
    ("think", "", {}, "\n<think>why</think>so", "why", "so"),
    ("think", "", {}, "no thoughts < here </think>", "", "no thoughts < here </think>"),
    ("think", "assistant\n<think>\n", {}, "why</think>so", "why", "so"),
    ("think", "assistant\n<think>\n", {}, "<think>why</think>so", "why", "so"),
    ("think", "", {}, "<think>why", "why", ""),
    ("think", "", {}, "<think></think>so", "", "so"),
    ("think", "", {}, "<think>a</think>b<think>c</think>d", "ac", "bd"),
    ("think", "", {}, "<think>a <thi </thin b</think>c", "a <thi </thin b", "c"),
    ("think", "", {}, "  leading", "", "  leading"),
    ("deepseek_r1", "", {}, "why</think>\nso", "why", "so"),
    ("deepseek_r1", "", {}, "<think>\nwhy</think>so", "why", "so"),
    ("deepseek_r1", "", {}, "all of it", "all of it", ""),
    ("deepseek_r1", "<think>\n\n</think>\n\n", {}, "so", "", "so"),
    ("deepseek_v3", "", {}, "so</think>", "", "so</think>"),
    ("deepseek_v3", "", ON, "why</think>so", "why", "so"),
    ("qwen3", "", {}, "<think>\nwhy\n</think>\n\nso", "why", "so"),
    ("qwen3", "", {}, "why\n</think>\n\nso", "why", "so"),
    ("qwen3", "", OFF, "<think>x</think>so", "", "<think>x</think>so"),
    ("qwen3", "<|im_start|>assistant\n", {}, "so", "", "so"),
    ("qwen3", "<|im_start|>assistant\n<think>\n", {}, "why</think>so", "why", "so"),
    ("qwen3", "<think>\n\n</think>\n\n", {}, "so", "", "so"),
    ("granite", "", ON, "Here is my thought process: why\nHere is my response: so", "why", "so"),
    ("granite", "", ON, " Here's my thought process:\nwhy\n\nHere's my response:\nso", "why", "so"),
    ("granite", "", ON, "Here is my opinion", "", "Here is my opinion"),
    ("granite", "", {}, "Here is my thought process: why", "", "Here is my thought process: why"),
    ("hunyuan_a13b", "", {}, "<think>\nwhy\n</think>\n<answer>\nso\n</answer>", "why", "so"),
    ("hunyuan_a13b", "", {}, "<think>\nwhy\n</think>\nso", "why", "so"),
    ("hunyuan_a13b", "", {}, "so", "", "so"),
    ("mistral", "", {}, "[THINK]why[/THINK]so", "why", "so"),
    ("seed_oss", "", {}, "<seed:think>why</seed:think>so", "why", "so"),
    ("minimax_m2", "", {}, "why</think>so", "why", "so"),
    ("openai_gptoss", "", {}, HARMONY, "why", "so"),
    ("openai_gptoss", "", {}, "plain", "", "plain"),
    ("openai_gptoss", "", {}, "<|channel|>commentary<|message|>a<|end|><|channel|>analysis<|message|>cut", "cut", "a"),
]


@pytest.mark.parametrize(
    ("name", "prompt", "kwargs", "text", "reasoning", "content"),
    CASES,
    ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)],
)
def test_thinking_and_answer(
    name: str, prompt: str, kwargs: dict[str, Any], text: str, reasoning: str, content: str
) -> None:
    parser = get_reasoning_parser(name)
    assert run_every_way(lambda: parser(prompt, kwargs), text) == (reasoning, content, [])


@pytest.mark.parametrize("name", sorted(REASONING_PARSERS))
def test_every_registered_parser_takes_anything(name: str) -> None:
    parser = get_reasoning_parser(name)
    assert run(parser(), []) == ("", "", [])
    for text in ("<", "</think>", "<think>", "<|channel|>", "<answer>", "[THINK", "\n\n", "Here is my"):
        run_every_way(parser, text)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ApplianceError, match=r"--reasoning-parser: there is no parser 'x'.*qwen3"):
        get_reasoning_parser("x")


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_reasoning_comes_before_tools_and_a_marker_inside_is_no_call() -> None:
    def make() -> OutputParser:
        return OutputParser(get_reasoning_parser("qwen3")(), get_tool_parser("hermes")())

    text = f"<think>\nmaybe {CALL}\n</think>\n\nI look.\n{CALL}"
    reasoning, content, calls = run_every_way(make, text)
    assert reasoning == f"maybe {CALL}"
    assert content.strip() == "I look."
    assert calls == [("f", '{"a": 1}')]


def test_without_parsers_text_is_content() -> None:
    assert run_every_way(OutputParser, "a<think>b") == ("", "a<think>b", [])


def test_harmony_with_tools_is_read_once() -> None:
    def make() -> OutputParser:
        return OutputParser(get_reasoning_parser("openai_gptoss")(), get_tool_parser("openai")())

    text = "<|channel|>analysis<|message|>why<|end|><|channel|>commentary to=functions.f<|message|>{}<|call|>"
    assert run_every_way(make, text) == ("why", "", [("f", "{}")])
    assert len(make().markers) == len(set(make().markers))
