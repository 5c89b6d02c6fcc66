"""Anthropic's Python SDK. Arguments: base URL (without /v1), key, model."""

# ruff: noqa: PT017 - runs without pytest

from __future__ import annotations

import sys
from typing import Literal

import anthropic
from pydantic import BaseModel

URL, KEY, MODEL = sys.argv[1:]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0}  # the newest SDK no longer names it
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}


def messages(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model=MODEL, messages=QUESTION, max_tokens=12, extra_body=GREEDY, system="Be brief."
    )
    assert answer.type == "message"
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.content[0].type == "text"
    assert answer.usage.output_tokens > 0
    with client.messages.stream(
        model=MODEL, messages=QUESTION, max_tokens=12, extra_body=GREEDY, system="Be brief."
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer.content[0].text == final.content[0].text
    assert final.stop_reason == answer.stop_reason
    assert final.usage.output_tokens == answer.usage.output_tokens


def stopping(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model=MODEL, messages=QUESTION, max_tokens=20, extra_body=GREEDY, stop_sequences=["Paris"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")


def counting(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    answer = client.messages.create(model=MODEL, messages=QUESTION, max_tokens=1)
    usage = answer.usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def tools(client: anthropic.Anthropic) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "tools": [TOOL], "max_tokens": 60, "extra_body": GREEDY}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = client.messages.create(**fields, tool_choice=choice)
    (block,) = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use"
    assert block.name == "get_weather"
    assert block.input["city"] in ("Paris", "Oslo")
    with client.messages.stream(**fields, tool_choice=choice) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert [b.input for b in final.content if b.type == "tool_use"] == [block.input]
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    turns = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model=MODEL, messages=turns, tools=[TOOL], max_tokens=8).role == "assistant"


class Capital(BaseModel):
    city: Literal["Paris", "Rome"]
    size: Literal["small", "large"]


def parse(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(model=MODEL, messages=QUESTION, max_tokens=60, output_format=Capital)
    assert isinstance(answer.parsed_output, Capital)


def errors(client: anthropic.Anthropic) -> None:
    for kind, fields in (
        (anthropic.NotFoundError, {"model": "other"}),
        (anthropic.BadRequestError, {"messages": []}),
        (anthropic.BadRequestError, {"max_tokens": 0}),
    ):
        try:
            client.messages.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": 4, **fields})
        except kind as error:
            assert error.body["type"] == "error"
            assert error.body["error"]["type"]
        else:
            raise AssertionError(f"{fields} must be refused")
    try:
        anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0).messages.create(
            model=MODEL, messages=QUESTION, max_tokens=1
        )
    except anthropic.AuthenticationError as error:
        assert error.body["error"]["type"] == "authentication_error"
    else:
        raise AssertionError("a wrong key must be refused")


def main() -> None:
    with anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=60) as client:
        for part in (messages, stopping, counting, tools, parse, errors):
            part(client)
            print(part.__name__, "passed", flush=True)


main()
