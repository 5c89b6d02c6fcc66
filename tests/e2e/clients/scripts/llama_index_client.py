"""llama-index's OpenAILike. Arguments: base URL, key, model."""

from __future__ import annotations

import asyncio
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

URL, KEY, MODEL = sys.argv[1:]


def main() -> None:
    fields = {"model": MODEL, "api_base": URL, "api_key": KEY, "max_tokens": 12, "temperature": 0, "max_retries": 0}
    chat = OpenAILike(**fields, is_chat_model=True, context_window=8192)
    messages = [ChatMessage(role="user", content="What is the capital of France?")]
    answer = chat.chat(messages)
    assert "Paris" in answer.message.content
    assert [chunk.delta for chunk in chat.stream_chat(messages)]
    assert list(chat.stream_chat(messages))[-1].message.content == answer.message.content
    assert asyncio.run(chat.achat(messages)).message.content == answer.message.content
    print("chat passed", flush=True)

    text = OpenAILike(**fields, is_chat_model=False, context_window=8192)
    completion = text.complete("The capital of France is")
    assert "Paris" in completion.text
    assert list(text.stream_complete("The capital of France is"))[-1].text == completion.text
    print("completion passed", flush=True)


main()
