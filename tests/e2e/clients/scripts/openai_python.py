"""The official Python SDK: everything an application does with it. Arguments: base URL, key, model."""

# ruff: noqa: PT017 - runs without pytest

from __future__ import annotations

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

URL, KEY, MODEL = sys.argv[1:]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Capital(BaseModel):
    city: Literal["Paris", "Rome"]
    size: Literal["small", "large"]


def chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=1)
    assert raw.headers["x-request-id"] == raw.request_id

    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, stream=True, stream_options=options
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens

    with client.chat.completions.stream(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0) as stream:
        kinds = {event.type for event in stream}
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert stream.get_final_completion().choices[0].message.content == text


def logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2)
    assert [len(token.top_logprobs) for token in answer.choices[0].logprobs.content] == [2, 2, 2]


def completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=1
    )
    assert "Paris" in answer.choices[0].text
    assert len(answer.choices[0].logprobs.tokens) == 4
    stream = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def tools(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "tools": [TOOL], "max_tokens": 60, "temperature": 0}
    answer = client.chat.completions.create(**fields, tool_choice="required", parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns = [*QUESTION, answer.choices[0].message, result]
    again = client.chat.completions.create(model=MODEL, messages=turns, tools=[TOOL], max_tokens=8)
    assert again.choices[0].message.role == "assistant"

    with client.chat.completions.stream(**fields, tool_choice="required", parallel_tool_calls=False) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0].message.tool_calls
    assert names == ["get_weather"]
    assert final[0].function.arguments == call.function.arguments


def parse(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "max_tokens": 60, "temperature": 0}
    answer = client.chat.completions.parse(**fields, response_format=Capital)
    assert isinstance(answer.choices[0].message.parsed, Capital)
    with client.chat.completions.stream(**fields, response_format=Capital) as stream:
        list(stream)
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    called = client.chat.completions.parse(
        **fields, tools=[openai.pydantic_function_tool(Capital)], tool_choice="required", parallel_tool_calls=False
    )
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Capital)


def responses(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "input": "What is the capital of France?", "max_output_tokens": 16, "temperature": 0}
    answer = client.responses.create(**fields)
    assert "Paris" in answer.output_text
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == answer.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    follow = client.responses.create(
        model=MODEL, input="And of Italy?", previous_response_id=answer.id, max_output_tokens=16, temperature=0
    )
    assert "Rome" in follow.output_text
    parsed = client.responses.parse(model=MODEL, input="France", text_format=Capital, max_output_tokens=60)
    assert isinstance(parsed.output_parsed, Capital)
    assert client.responses.retrieve(answer.id).output_text == answer.output_text


def errors(client: openai.OpenAI) -> None:
    for kind, fields in (
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"temperature": 9}),
        (openai.BadRequestError, {"messages": []}),
    ):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **fields})
        except kind as error:
            assert error.param == next(iter(fields))
            assert error.request_id
        else:
            raise AssertionError(f"{fields} must be refused")
    try:
        openai.OpenAI(base_url=URL, api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError("a wrong key must be refused")


async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as client:
        calls = [
            client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, temperature=0)
            for _ in range(4)
        ]
        answers = await asyncio.gather(*calls)
        assert len({answer.choices[0].message.content for answer in answers}) == 1
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, stream=True)
        assert [chunk async for chunk in stream]


def main() -> None:
    with openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60) as client:
        assert MODEL in [model.id for model in client.models.list()]
        assert client.models.retrieve(MODEL).id == MODEL
        for part in (chat, logprobs, completions, tools, parse, responses, errors):
            part(client)
            print(part.__name__, "passed", flush=True)
    asyncio.run(asynchronous())


main()
