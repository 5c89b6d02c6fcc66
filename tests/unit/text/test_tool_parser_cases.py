# ruff: noqa: E501  a case a line
"""Edge cases of the tool-call formats: one line each, fed whole, in pieces and at every split point."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.text.feeding import run, run_every_way
from tests.unit.text.test_tool_parsers import make_parser

CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    # format, text, content, calls (arguments as object, or the exact text)
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", {"a": 1})]),
    ("hermes", "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {bad}}</tool_call>', "<tool_call>{\"name\": \"f\", \"arguments\": {bad}}</tool_call>", []),
    ("hermes", 'a <tool b <tool_cal c', "a <tool b <tool_cal c", []),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    ("hermes", '<tool_call>{"id": 1, "name": "f", "arguments": {}, "type": "x"}</tool_call>ok', "ok", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"t": "line\nbreak\ttab"}}</tool_call>', "", [("f", {"t": "line\nbreak\ttab"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"t": "</tool_call>"}}</tool_call>', "", [("f", {"t": "</tool_call>"})]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}\n</tool_call>', "", [("f", {}), ("g", {})]),
    ("hermes", "</tool_call> alone", "</tool_call> alone", []),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>', '<tool_call>{"name": "", "arguments": {}}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a":  1 } }</tool_call>', "", [("f", '{"a":  1 }')]),
    ("mistral", "[TOOL_CALLS] [] ok", "[TOOL_CALLS] [] ok", []),
    ("mistral", "[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}", "", [("get_time", {})]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"nam', "", [("f", {})]),
    ("jamba", ' <tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', "", [("f", {})]),
    ("pythonic", "[see(this) link]", "[see(this) link]", []),
    ("pythonic", "[1, 2]", "[1, 2]", []),
    ("pythonic", "[f(1)]", "[f(1)]", []),
    ("pythonic", "[a.b.f(x=[1, {'k': (2, None)}], y=-1.5, z=true)]", "", [("a.b.f", {"x": [1, {"k": [2, None]}], "y": -1.5, "z": True})]),
    ("pythonic", "[f(x='''a'b\"c''', y=\"\", z='it\\'s')]", "", [("f", {"x": "a'b\"c", "y": "", "z": "it's"})]),
    ("pythonic", "[f(x=__import__('os'))]", "[f(x=__import__('os'))]", []),
    ("pythonic", "[f(a=1), g(2)] x", "g(2)] x", [("f", {"a": 1})]),
    ("llama3_json", '{"a": 1}', '{"a": 1}', []),
    ("llama3_json", '{"name": "f"}', '{"name": "f"}', []),
    ("llama3_json", 'Example: {"name": "f", "parameters": {}}', 'Example: {"name": "f", "parameters": {}}', []),
    ("llama3_json", '{"name": "f", "arguments": {"a": {"b": [{"c": "}"}]}}}\n{"name": "g", "parameters": {}}', "", [("f", {"a": {"b": [{"c": "}"}]}}), ("g", {})]),
    ("llama3_json", '{"name": "f", "parameters": {}} {"x": 1}', '{"x": 1}', [("f", {})]),
    ("internlm", "<|action_start|><|interpreter|>x<|action_end|>", "<|action_start|><|interpreter|>x<|action_end|>", []),
    ("internlm", 'sure<|action_start|> <|plugin|> {"name": "f", "arguments": {}} <|action_end|>', "sure", [("f", {})]),
    ("phi4_mini_json", "use functools here, functools[0]", "use functools here, functools[0]", []),
    ("phi4_mini_json", 'functools[{"name": "f", "arguments": {"a": [[1], [2]]}}]', "", [("f", {"a": [[1], [2]]})]),
    ("qwen3_coder", "<function=f><parameter=text>a</parameter></function>", "", [("f", {"text": "a"})]),
    ("qwen3_coder", "<tool_call><function=f><parameter=text>\n  a\n\n b \n</parameter><parameter=days>3</function></tool_call>", "", [("f", {"text": "  a\n\n b ", "days": 3})]),
    ("qwen3_coder", "<tool_call>\n<function=f\n<parameter=text\nx</parameter></tool_call><tool_call><function=get_time></function></tool_call>", "", [("f", {"text": "x"}), ("get_time", {})]),
    ("qwen3_coder", "<function=f><parameter=text>1<parameter=days>2</parameter>", "", [("f", {"text": "1", "days": 2})]),
    ("qwen3_coder", "<function=f><parameter=text>all", "", [("f", {"text": "all"})]),
    ("glm45", "<tool_call>f<arg_key>days</arg_key><arg_value>3</arg_value>", "", [("f", {"days": 3})]),
    ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="days">3</parameter>', "", [("f", {"days": 3})]),
    ("qwen3_coder", '<function=f><parameter=map>{"a": 1}</parameter><parameter=maybe>null</parameter><parameter=mode>none</parameter></function>', "", [("f", {"map": {"a": 1}, "maybe": None, "mode": "none"})]),
    ("qwen3_coder", "<tool_call>or not", "<tool_call>or not", []),
    ("qwen3_coder", "<function=un", "<function=un", []),
    ("deepseek_v3", "a<｜tool▁calls▁begin｜>nothing", "a<｜tool▁calls▁begin｜>nothing", []),
    ("deepseek_v3", '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\n "a": 1\n}\n```<｜tool▁call▁end｜>', "", [("f", '{\n "a": 1\n}')]),
    ("kimi_k2", "a<|tool_calls_section_begin|> x <|tool_call_begin|>bad id!<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.a.b-c:7<|tool_call_argument_begin|> {bad<|tool_call_end|><|tool_calls_section_end|>b", "ab", [("a.b-c", "{bad")]),
    ("kimi_k2", "a<|tool_calls_section_begin|><|tool_calls_section_end|>b", "ab", []),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\"", "", [("f", '{"a"')]),
    ("glm45", "<tool_call>get_time</tool_call>", "", [("get_time", {})]),
    ("glm45", "<tool_call>get_time\n</tool_call>\n", "", [("get_time", {})]),
    ("glm45", "<tool_call>f<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>text</arg_key><arg_value>3</arg_value></tool_call>", "", [("f", {"days": 3, "text": "3"})]),
    ("glm45", "<tool_call> is a tag", "<tool_call> is a tag", []),
    ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="none">nil</parameter><parameter name="mode">none</parameter><parameter name="maybe">null</parameter></invoke><invoke name=get_time></invoke></minimax:tool_call>!', "!", [("f", {"none": "nil", "mode": "none", "maybe": None}), ("get_time", {})]),
    ("minimax_m2", "<minimax:tool_call>no</minimax:tool_call>", "<minimax:tool_call>no</minimax:tool_call>", []),
    ("xlam", 'think</think>\n[{"name": "f", "arguments": {"a": "é"}}]', "think</think>", [("f", {"a": "é"})]),
    ("xlam", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
    ("xlam", '[{"name": "f", "arguments": {}}]\n```py\nx\n```', "\n```py\nx\n```", [("f", {})]),
    ("granite", "<tool_call>", "<tool_call>", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("format", "text", "content", "calls"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_edge_cases(format: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    _, shown, found = run_every_way(make_parser(format), text)
    assert shown.strip() == content.strip()
    assert [name for name, _ in found] == [name for name, _ in calls]
    for (_, arguments), (_, expected) in zip(found, calls, strict=True):
        assert (arguments if isinstance(expected, str) else json.loads(arguments)) == expected


@pytest.mark.parametrize("text", ["<function=f><parameter=text>cut of", "<function=f>", "<function=f><parameter=te"])
def test_a_call_that_is_cut_off_stays_open(text: str) -> None:
    assert run(make_parser("qwen3_coder")(), [text], is_cut=True)[2] == [("f", "{")]
