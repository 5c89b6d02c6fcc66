"""How the text of a chat answer is taken apart, and when a grammar begins to hold in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from appliance.api.conversation.schemas import ChatRequest
from appliance.api.conversation.tool_grammar import make_strict_grammar
from appliance.api.conversation.tools import ToolChoice
from appliance.api.parsers import Parsers
from appliance.generation import GenerationSpec
from appliance.text.output_parser import OutputParser
from appliance.text.reasoning_parsers.base import ReasoningParser, Thinking
from appliance.text.tokenizer import Tokenizer
from appliance.text.tool_parsers.base import ToolParser
from appliance.text.tool_parsers.constrained import NamedToolParser, RequiredToolParser
from appliance.text.tool_parsers.first_call import FirstCallParser
from engine.messages import Grammar

_PROMPT_END_CHARS = 256


def make_parser_factory(
    request: ChatRequest, parsers: Parsers, prompt: str, on_tools: Callable[[bool], None]
) -> Callable[[], OutputParser] | None:
    """Builds the parser of one choice; None where the text is the answer.

    `on_tools` is told of each choice that was searched for tool calls whether there were any.
    """
    make_tools = _tool_parser_factory(request, parsers)
    make_reasoning = _reasoning_factory(request, parsers, prompt)
    if make_tools is None and make_reasoning is None:
        return None

    def make() -> OutputParser:
        tools = make_tools() if make_tools else None
        return OutputParser(make_reasoning() if make_reasoning else None, tools, on_tools)

    return make


def constrain(
    spec: GenerationSpec, request: ChatRequest, parsers: Parsers, prompt: str, tokenizer: Tokenizer
) -> GenerationSpec:
    """The spec with the grammar of strict tools, if there are any, and one that leaves the model's thinking alone.

    Raises InvalidRequestError for tools whose schemas are out of bounds.
    """
    grammar = spec.sampling.grammar or make_strict_grammar(request.tools_choice, parsers.tools)
    if grammar is None:
        return spec
    make_reasoning = _reasoning_factory(request, parsers, prompt)
    thinking = make_reasoning().thinking if make_reasoning else None
    if thinking is not None:
        grammar = _after(grammar, thinking, tokenizer)
    return dataclasses.replace(spec, sampling=msgspec.structs.replace(spec.sampling, grammar=grammar))


def _after(grammar: Grammar, thinking: Thinking, tokenizer: Tokenizer) -> Grammar:
    end = tokenizer.encode(thinking.end, add_special_tokens=False)
    opens_with = None if thinking.is_open else tokenizer.token_id(thinking.start)
    if not thinking.is_open and opens_with is None:
        return grammar  # the tag is no token: the model cannot be let off with one
    return msgspec.structs.replace(grammar, starts_after=end, opens_with=opens_with)


def _tool_parser_factory(request: ChatRequest, parsers: Parsers) -> Callable[[], ToolParser] | None:
    choice = request.tools_choice
    tools = [tool.to_template() for tool in choice.tools]
    make = _parser_class(choice, parsers)
    if make is None:
        return None
    if request.parallel_tool_calls:
        return lambda: make(tools)
    return lambda: FirstCallParser(make(tools))


def _parser_class(choice: ToolChoice, parsers: Parsers) -> Callable[[list[dict[str, Any]]], ToolParser] | None:
    if choice.mode == "named":
        return NamedToolParser
    if choice.mode == "required":
        return RequiredToolParser
    return parsers.tools if choice.mode == "auto" else None


def _reasoning_factory(request: ChatRequest, parsers: Parsers, prompt: str) -> Callable[[], ReasoningParser] | None:
    make = parsers.reasoning
    if make is None:
        return None
    end = prompt[-_PROMPT_END_CHARS:]
    return lambda: make(end, request.template_kwargs)
