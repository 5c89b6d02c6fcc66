"""The collected chat answer. Printing a stream is `chat.streaming`'s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from appliance.api.choice_stream import ChoiceStream
from appliance.api.conversation.job import ChatJob
from appliance.api.logprobs import chat_logprobs, prompt_logprobs
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart
from engine.messages import TokenLogprobs


@dataclass
class CollectedChoice:
    """One choice's events, folded."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, event: Event) -> None:
        """Fold one event in."""
        match event:
            case Content(text=text) | Reasoning(text=text):
                (self.content if isinstance(event, Content) else self.reasoning).append(text)
                self.token_ids += event.token_ids
                self.logprobs += event.logprobs or []
            case ToolCallStart(id=id, name=name):
                self.tool_calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": ""}})
            case ToolCallArguments(index=index, text=text):
                self.tool_calls[index]["function"]["arguments"] += text
            case Finish():
                self.finish = event


async def collect_chat(job: ChatJob, stream: ChoiceStream) -> dict[str, Any]:
    """The whole answer. Raises what the stream raises."""
    choices = [CollectedChoice() for _ in range(job.request.n)]
    while (batch := await stream.get()) is not None:
        for index, event in batch:
            job.count(event)
            if job.request.include_reasoning or not isinstance(event, Reasoning):
                choices[index].add(event)
    answer = {
        "id": job.id,
        "object": "chat.completion",
        "created": job.created,
        "model": job.model.name,
        "choices": [_print_choice(job, index, choice) for index, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": job.model.system_fingerprint,
        "usage": job.usage(),
    }
    return answer | _print_prompt(job)


def _print_choice(job: ChatJob, index: int, choice: CollectedChoice) -> dict[str, Any]:
    assert choice.finish is not None, "every choice ends with a finish"
    printed = {
        "index": index,
        "message": _print_message(job, choice),
        "logprobs": chat_logprobs(job.printer, choice.logprobs) if job.request.logprobs else None,
        "finish_reason": choice.finish.finish_reason,
        "stop_reason": choice.finish.stop_reason,
    }
    return printed | ({"token_ids": choice.token_ids} if job.request.return_token_ids else {})


def _print_message(job: ChatJob, choice: CollectedChoice) -> dict[str, Any]:
    text = job.echoed + "".join(choice.content)
    content = text if text or not choice.tool_calls else None
    message: dict[str, Any] = {"role": job.role, "content": content, "refusal": None}
    if choice.reasoning:
        message |= dict.fromkeys(job.reasoning_names, "".join(choice.reasoning))
    if choice.tool_calls:
        message["tool_calls"] = choice.tool_calls
    return message


def _print_prompt(job: ChatJob) -> dict[str, Any]:
    printed: dict[str, Any] = {}
    if job.request.prompt_logprobs is not None:
        printed["prompt_logprobs"] = prompt_logprobs(job.printer, job.generation.prompt_logprobs or [])
    return printed | print_prompt_fields(job)


def print_prompt_fields(job: ChatJob) -> dict[str, Any]:
    """The prompt as ids and text, where asked for."""
    printed: dict[str, Any] = {}
    if job.request.return_token_ids:
        printed["prompt_token_ids"] = job.prompt_token_ids
    if job.request.return_prompt_text:
        printed["prompt_text"] = job.prompt.text
    return printed
