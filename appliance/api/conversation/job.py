"""One chat request from its fields to a running generation. Printing what it says is each protocol's job."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from appliance.api.choice_stream import ChoiceStream
from appliance.api.conversation.parsing import constrain, make_parser_factory
from appliance.api.conversation.prompt import ChatPrompt, make_chat_prompt
from appliance.api.conversation.schemas import ChatRequest
from appliance.api.generation_spec import make_spec
from appliance.api.logprobs import TokenPrinter
from appliance.api.prompt import fit_prompt, limit_output
from appliance.api.rate_limits import charge_prompt
from appliance.api.request_ids import make_object_id
from appliance.api.served_model import ServedModel
from appliance.api.state import ApiState
from appliance.api.usage import make_usage
from appliance.generation import Generation
from appliance.text.events import Event, Reasoning


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
    reasoning_names: tuple[str, ...]  # the fields that chat writes the thinking into
    id: str
    created: int = field(default_factory=lambda: int(time.time()))
    num_reasoning_tokens: int | None = None  # None: nothing tells thinking from text

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

    def count(self, event: Event) -> None:
        """Every event that is printed is counted here first."""
        if isinstance(event, Reasoning) and self.num_reasoning_tokens is not None:
            self.num_reasoning_tokens += len(event.token_ids)

    def usage(self) -> dict[str, Any]:
        """Tokens so far, over all choices."""
        generation = self.generation
        cached = (generation.num_cached_tokens or 0) if self.reports_cached else None
        num_output = sum(generation.num_output_tokens)
        return make_usage(len(self.prompt_token_ids), num_output, cached, self.num_reasoning_tokens)


@dataclass(frozen=True)
class Caller:
    """Another protocol that asks: the id of its answer, and what the metrics call such a request."""

    object_id: str
    request_type: str
    is_streamed: bool


async def start_chat(request: ChatRequest, state: ApiState, caller: Caller | None = None) -> ChatJob:
    """Everything that can be wrong with a request is found here, before anything is sent or generated.

    Raises APIError.
    """
    caller = caller or Caller(make_object_id("chatcmpl"), "chat_completions", request.stream)
    state.drain.check()
    model = state.models.get(request.model)
    request.check(state.settings, model)
    prompt = await make_chat_prompt(request, model, state, is_bounded=request.truncate_prompt_tokens is None)
    token_ids = fit_prompt(prompt.token_ids, model, request, param="messages")
    param, asked = request.asked_max_tokens
    asked = model.defaults.max_tokens if asked is None else asked
    spec = make_spec(
        request, model, token_ids, limit_output(asked, len(token_ids), model, param=param), caller.object_id
    )
    spec = constrain(spec, request, state.parsers, prompt.text, model.tokenizer)
    on_tools = state.metrics.tool_call_counter(model.name, caller.request_type, is_streamed=caller.is_streamed)
    make_parser = make_parser_factory(request, state.parsers, prompt.text, on_tools)
    await charge_prompt(len(token_ids))
    return ChatJob(
        request=request,
        model=model,
        prompt=prompt,
        prompt_token_ids=token_ids,
        generation=state.make_generation(model, spec, make_parser),
        printer=state.make_printer(model, request),
        response_role=state.settings.response_role,
        reports_cached=state.settings.enable_prompt_tokens_details,
        reasoning_names=("reasoning", "reasoning_content")[: 1 + state.settings.emit_reasoning_content],
        id=caller.object_id,
        num_reasoning_tokens=None if state.parsers.reasoning is None else 0,
    )
