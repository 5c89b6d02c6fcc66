"""Answers a chat request: prompt, generation, and the collected answer. Printing a stream is `chat.streaming`'s."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from appliance.api.chat.prompt import ChatPrompt, make_chat_prompt
from appliance.api.chat.schemas import ChatRequest
from appliance.api.choice_stream import ChoiceStream
from appliance.api.generation_spec import make_spec
from appliance.api.logprobs import TokenPrinter, chat_logprobs, prompt_logprobs
from appliance.api.prompt import fit_prompt, limit_output
from appliance.api.request_ids import make_object_id
from appliance.api.served_model import ServedModel
from appliance.api.state import ApiState
from appliance.api.usage import make_usage
from appliance.generation import Generation
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart
from engine.messages import TokenLogprobs


@dataclass
class ChatJob:
    """One chat request on its way: what was asked, of which model, and the generation that answers it."""

    request: ChatRequest
    model: ServedModel
    prompt: ChatPrompt
    prompt_token_ids: list[int]
    generation: Generation
    printer: TokenPrinter
    response_role: str
    reports_cached: bool
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def make_stream(self) -> ChoiceStream:
        """The events of all choices."""
        return ChoiceStream([self.generation], self.request.n)

    @property
    def role(self) -> str:
        """The answer's role: the last message's own where the answer continues it."""
        return self.response_role if self.request.opens_answer else self.prompt.last_role

    @property
    def echoed(self) -> str:
        """The text that every choice begins with under ``echo``."""
        return self.prompt.last_content if self.request.echo and self.prompt.last_role == self.role else ""

    def describe(self) -> str:
        """For the log: numbers only, nothing of the conversation."""
        num_output = sum(self.generation.num_output_tokens)
        return f"model={self.model.name} prompt_tokens={len(self.prompt_token_ids)} output_tokens={num_output}"

    def usage(self) -> dict[str, Any]:
        """Tokens so far, over all choices."""
        generation = self.generation
        cached = (generation.num_cached_tokens or 0) if self.reports_cached else None
        return make_usage(len(self.prompt_token_ids), sum(generation.num_output_tokens), cached)


async def start_chat(request: ChatRequest, state: ApiState) -> ChatJob:
    """Everything that can be wrong with a request is found here, before anything is sent or generated.

    Raises APIError.
    """
    state.drain.check()
    model = state.models.get(request.model)
    request.check(state.settings, model)
    prompt = await make_chat_prompt(request, model, is_bounded=request.truncate_prompt_tokens is None)
    token_ids = fit_prompt(prompt.token_ids, model, request, param="messages")
    param, asked = request.asked_max_tokens
    asked = model.defaults.max_tokens if asked is None else asked
    object_id = make_object_id("chatcmpl")
    spec = make_spec(request, model, token_ids, limit_output(asked, len(token_ids), model, param=param), object_id)
    return ChatJob(
        request=request,
        model=model,
        prompt=prompt,
        prompt_token_ids=token_ids,
        generation=state.make_generation(model, spec),
        printer=state.make_printer(model, request),
        response_role=state.settings.response_role,
        reports_cached=state.settings.enable_prompt_tokens_details,
        id=object_id,
    )


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
    if choice.reasoning and job.request.include_reasoning:
        message["reasoning"] = "".join(choice.reasoning)
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
