"""litellm as a client of an OpenAI-compatible server. Arguments: base URL, key, model."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

URL, KEY, MODEL = sys.argv[1:]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
FIELDS: dict[str, Any] = {"api_base": URL, "api_key": KEY, "max_tokens": 12, "temperature": 0, "num_retries": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}


def chat(provider: str) -> None:
    model = f"{provider}/{MODEL}"
    answer = litellm.completion(model=model, messages=QUESTION, **FIELDS)
    assert "Paris" in answer.choices[0].message.content
    chunks = list(litellm.completion(model=model, messages=QUESTION, stream=True, **FIELDS))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content
    assert asyncio.run(litellm.acompletion(model=model, messages=QUESTION, **FIELDS)).choices


def main() -> None:
    for provider in ("openai", "hosted_vllm"):
        chat(provider)
        print(provider, "passed", flush=True)
    text = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="The capital of France is", **FIELDS)
    assert "Paris" in text.choices[0].text
    called = litellm.completion(
        model=f"openai/{MODEL}",
        messages=QUESTION,
        tools=[TOOL],
        tool_choice="required",
        **FIELDS | {"max_tokens": 60},
    )
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    print("text and tools passed", flush=True)
    try:
        litellm.completion(model="openai/other", messages=QUESTION, **FIELDS)
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("an unknown model must be refused")
    try:
        litellm.completion(model=f"openai/{MODEL}", messages=[{"role": "user", "content": "hello " * 9000}], **FIELDS)
    except litellm.ContextWindowExceededError:
        print("errors passed", flush=True)
    else:
        raise AssertionError("an over-long prompt must be refused")


main()
