"""The battery of every tool-call format: each text whole, in pieces, and at every split point."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from appliance.errors import ApplianceError
from appliance.text.tool_parsers import TOOL_PARSERS, get_tool_parser
from appliance.text.tool_parsers.constrained import NamedToolParser, RequiredToolParser
from tests.unit.text.feeding import Folded, run, run_every_way

Call = tuple[str, dict[str, Any]]
_PROPERTIES = {
    "city": {"type": "string"}, "days": {"type": "integer"}, "ratio": {"type": "number"}, "on": {"type": "boolean"},
    "none": {"type": ["string", "null"]}, "list": {"type": "array"}, "map": {"type": "object"},
    "text": {"type": "string"}, "mode": {"enum": ["none", "full"]},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": _PROPERTIES}}}
    for name in ("get_weather", "get_time", "f")
]
SIMPLE: Call = ("get_weather", {"city": "Paris", "days": 3})
OTHER: Call = ("get_time", {"city": "Oslo"})
TYPES: Call = (
    "f",
    {"city": "x", "days": -4, "ratio": 2.5, "on": True, "none": None, "list": [1, [2, "]"]], "map": {"a": {"b": "}"}}},
)
ESCAPES: Call = ("f", {"text": 'quote " slash \\ brace } ] ) tag < > newline\nand\ttab é 你好 😀'})
EMPTY: Call = ("get_time", {})


def _json(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]}, ensure_ascii=False)


def _arguments(call: Call) -> str:
    return json.dumps(call[1], ensure_ascii=False)


def _xml_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hermes(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_json(call)}\n</tool_call>" for call in calls)


def _array(calls: list[Call]) -> str:
    return "[" + ", ".join(map(_json, calls)) + "]"


def _python(calls: list[Call]) -> str:
    return "[" + ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls) + "]"


def _qwen3_coder(calls: list[Call], outer: str = "tool_call") -> str:
    return "\n".join(
        f"<{outer}>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{_xml_value(value)}\n</parameter>\n" for key, value in arguments.items())
        + f"</function>\n</{outer}>"
        for name, arguments in calls
    )


def _glm(calls: list[Call]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_xml_value(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def _minimax(calls: list[Call]) -> str:
    body = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{_xml_value(value)}</parameter>\n' for key, value in arguments.items())
        + "</invoke>\n"
        for name, arguments in calls
    )
    return f"<minimax:tool_call>\n{body}</minimax:tool_call>"


def _deepseek_v3(calls: list[Call]) -> str:
    body = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}\n```json\n{_arguments(call)}\n```<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: list[Call]) -> str:
    body = "".join(
        f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{_arguments(call)}<｜tool▁call▁end｜>" for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def _kimi(calls: list[Call]) -> str:
    body = "".join(
        f"<|tool_call_begin|>functions.{call[0]}:{index}<|tool_call_argument_begin|>{_arguments(call)}<|tool_call_end|>"
        for index, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def _harmony(calls: list[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{_arguments(call)}<|call|>"
        for call in calls
    )


WRITERS: dict[str, Callable[[list[Call]], str]] = {
    "hermes": _hermes,
    "mistral": lambda calls: f"[TOOL_CALLS]{_array(calls)}",
    "mistral v11": lambda calls: "".join(f"[TOOL_CALLS]{call[0]}[ARGS]{_arguments(call)}" for call in calls),
    "mistral v11 bare": lambda calls: "".join(f"[TOOL_CALLS]{call[0]}{_arguments(call)}" for call in calls),
    "jamba": lambda calls: f"<tool_calls>{_array(calls)}</tool_calls>",
    "pythonic": _python,
    "llama4_pythonic": lambda calls: f"<|python_start|>{_python(calls)}<|python_end|>",
    "llama3_json": lambda calls: "; ".join(_json(call, "parameters") for call in calls),
    "llama3_json tagged": lambda calls: "<|python_tag|>" + ";".join(_json(call, "parameters") for call in calls),
    "granite-20b-fc": lambda calls: "".join(f"<function_call> {_json(call)}\n" for call in calls),
    "granite": lambda calls: f"<|tool_call|>{_array(calls)}",
    "granite plain": lambda calls: f"<tool_call> {_array(calls)}",
    "internlm": lambda calls: "".join(
        f"<|action_start|><|plugin|>\n{_json(call, 'parameters')}<|action_end|>\n" for call in calls
    ),
    "phi4_mini_json": lambda calls: f"functools{_array(calls)}",
    "qwen3_coder": _qwen3_coder,
    "seed_oss": lambda calls: _qwen3_coder(calls, "seed:tool_call"),
    "deepseek_v3": _deepseek_v3,
    "deepseek_v31": _deepseek_v31,
    "kimi_k2": _kimi,
    "glm45": _glm,
    "minimax_m2": _minimax,
    "xlam": _array,
    "xlam fenced": lambda calls: f"```json\n{_array(calls)}\n```",
    "xlam tagged": _hermes,
    "xlam marked": lambda calls: f"[TOOL_CALLS]{_array(calls)}",
    "longcat": lambda calls: "".join(f"<longcat_tool_call>{_json(call)}</longcat_tool_call>" for call in calls),
    "openai": _harmony,
}
TEXT_BEFORE = {"pythonic", "llama3_json", "xlam", "openai"}  # formats that own the start of the answer
ALL = sorted(WRITERS)


def make_parser(format: str) -> Callable[[], Any]:
    parser = get_tool_parser(format.partition(" ")[0])
    return lambda: parser(TOOLS)


def _calls(folded: Folded) -> list[Call]:
    return [(name, json.loads(arguments)) for name, arguments in folded[2]]


@pytest.mark.parametrize("format", ALL)
def test_no_tool_calls(format: str) -> None:
    for text in ("The weather is fine.\n\nIs a < b? Use [x] or {y}: f(1) `code`", "  \n", "x", " lead and trail "):
        assert run_every_way(make_parser(format), text) == ("", text, [])
    assert run(make_parser(format)(), []) == ("", "", [])


@pytest.mark.parametrize("format", ALL)
@pytest.mark.parametrize(
    "calls",
    [[SIMPLE], [SIMPLE, OTHER], [OTHER, EMPTY, SIMPLE, OTHER], [TYPES], [EMPTY], [ESCAPES]],
    ids=["single", "parallel", "four", "types", "empty", "escapes"],
)
def test_calls(format: str, calls: list[Call]) -> None:
    reasoning, content, found = folded = run_every_way(make_parser(format), WRITERS[format](calls))
    assert _calls(folded) == calls
    assert (reasoning, content) == ("", "")
    assert len(found) == len(calls)


@pytest.mark.parametrize("format", ALL)
def test_surrounding_text_is_content(format: str) -> None:
    block = WRITERS[format]([SIMPLE, OTHER])
    before = "" if format in TEXT_BEFORE else "Let me look.\n"
    if format != "openai":
        folded = run_every_way(make_parser(format), f"{before}{block}\nDone, é.")
        assert _calls(folded) == [SIMPLE, OTHER]
        assert folded[1].split() == f"{before} Done, é.".split()
    blank = run_every_way(make_parser(format), f"\n {block}\n\n")
    assert _calls(blank) == [SIMPLE, OTHER]
    assert blank[1] == ""


@pytest.mark.parametrize("format", ALL)
def test_malformed_input_never_raises_and_is_cut_the_same_everywhere(format: str) -> None:
    text = WRITERS[format]([SIMPLE, ESCAPES])
    for broken in (
        text[: len(text) // 2],
        text[: len(text) // 4],
        text[7:],
        text.replace(":", ""),
        text.replace('"', "'"),
    ):
        run_every_way(make_parser(format), broken)
    for cut in range(len(text)):  # ended by max_tokens anywhere: what came is a prefix of the whole
        _, _, calls = run(make_parser(format)(), [text[:cut]], is_cut=True)
        whole = run(make_parser(format)(), [text])[2]
        assert [name for name, _ in calls] == [name for name, _ in whole][: len(calls)]
        for (_, part), (_, arguments) in zip(calls, whole, strict=False):
            assert arguments.startswith(part)


@pytest.mark.parametrize("format", ALL)
def test_no_marker_shows_while_it_is_undecided(format: str) -> None:
    text = WRITERS[format]([SIMPLE])
    parser = make_parser(format)()
    shown = "".join(
        getattr(e, "text", "") for piece in text for e in parser.feed(piece) if type(e).__name__ == "Content"
    )
    assert shown.strip() == ""


@pytest.mark.parametrize("format", sorted(set(ALL) - {"pythonic", "llama4_pythonic"}))
def test_arguments_come_before_the_call_is_complete(format: str) -> None:
    text = WRITERS[format]([("f", {"city": "Paris", "text": "x" * 50})])
    _, _, calls = run(make_parser(format)(), [text[: text.index("xxx") + 10]])
    assert calls
    assert "Paris" in calls[0][1]


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_every_registered_parser_can_be_made(name: str) -> None:
    assert run(get_tool_parser(name)(), ["hi"]) == ("", "hi", [])


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ApplianceError, match=r"--tool-call-parser: there is no parser 'x'.*hermes"):
        get_tool_parser("x")


def test_ids() -> None:
    def ids(format: str, calls: list[Call]) -> list[str]:
        return [event.id for event in make_parser(format)().feed(WRITERS[format](calls)) if hasattr(event, "id")]

    assert all(re.fullmatch(r"chatcmpl-tool-[0-9a-f]{32}", id) for id in ids("hermes", [SIMPLE, OTHER]))
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", id) for id in ids("mistral", [SIMPLE, OTHER]))
    assert ids("kimi_k2", [SIMPLE, OTHER]) == ["functions.get_weather:0", "functions.get_time:1"]


def test_harmony_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant<|channel|>commentary<|message|>I'll look."
        '<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>Done."
    )
    assert run_every_way(make_parser("openai"), text) == ("Let me think.", "I'll look.Done.", [("f", '{"a": 1}')])


def test_required_output_is_an_array_of_calls() -> None:
    text = ' [{"name": "f", "parameters": {"a": "}]"}}, {"name": "g", "parameters": {}}]\n'
    assert run_every_way(RequiredToolParser, text) == ("", "", [("f", '{"a": "}]"}'), ("g", "{}")])
    assert run_every_way(RequiredToolParser, "no array") == ("", "no array", [])
    assert run(RequiredToolParser(), ['[{"name": "get_w'])[2] == []


def test_named_output_is_the_arguments() -> None:
    assert run_every_way(lambda: NamedToolParser(TOOLS[:1]), '{"a": 1}') == ("", "", [("get_weather", '{"a": 1}')])
    assert run(NamedToolParser(TOOLS), []) == ("", "", [])


def test_long_arguments_are_read_in_linear_time() -> None:
    text = WRITERS["hermes"]([("f", {"text": "x" * 200_000})])
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    assert len(run(make_parser("hermes")(), pieces)[2][0][1]) > 200_000
