"""langchain-openai: chat model, stream, structured output, tools. Arguments: base URL, key, model."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

URL, KEY, MODEL = sys.argv[1:]
QUESTION = "What is the capital of France?"


class Capital(BaseModel):
    """A capital."""

    city: Literal["Paris", "Rome"]
    size: Literal["small", "large"]


@tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def main() -> None:
    model = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=40, max_retries=0)
    answer = model.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert "Paris" in answer.content
    assert answer.usage_metadata["total_tokens"] > 0
    streamed = "".join(chunk.content for chunk in model.stream([SystemMessage("Be brief."), HumanMessage(QUESTION)]))
    assert streamed == answer.content
    assert len(asyncio.run(model.abatch([QUESTION, QUESTION]))) == 2
    print("chat passed", flush=True)

    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Capital, method=method).invoke(QUESTION), Capital)
    print("structured output passed", flush=True)

    called = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke("Weather in Oslo?")
    (call,) = called.tool_calls
    assert call["name"] == "get_weather"
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    after = model.bind_tools([get_weather]).invoke([HumanMessage("Weather in Oslo?"), called, result])
    assert after.type == "ai"
    print("tools passed", flush=True)

    legacy = OpenAI(base_url=URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=4, max_retries=0)
    assert "Paris" in legacy.invoke("The capital of France is")
    over = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, max_tokens=16, use_responses_api=True, max_retries=0)
    assert over.invoke(QUESTION).text
    print("completions and responses passed", flush=True)


main()
