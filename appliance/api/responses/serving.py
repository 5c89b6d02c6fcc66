"""Answers a response request: the conversation so far, its generation, the response object, and what is stored."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from appliance.api.choice_stream import ChoiceStream
from appliance.api.conversation.job import ChatJob
from appliance.api.responses.input_items import Item, read_items, to_messages
from appliance.api.responses.output_items import OutputItems, TypedEvent
from appliance.api.responses.schemas import ResponsesRequest
from appliance.api.responses.store import ResponseStore, StoredResponse
from appliance.api.responses.truncation import start_fitting
from appliance.api.state import ApiState, get_key_name, get_state
from appliance.errors import APIError, NotFoundError, UnavailableError
from appliance.text.events import Event, Finish

_SERVER_ERROR_FROM = 500


@dataclass
class ResponseJob:
    """One response on its way. ``items`` is the conversation that is answered, in plain form."""

    request: ResponsesRequest
    chat: ChatJob
    store: ResponseStore
    items: list[Item]
    output: OutputItems = field(init=False)
    finish: Finish | None = None

    def __post_init__(self) -> None:
        """The output has logprobs only where they were asked for."""
        printer = self.chat.printer if self.request.wants_logprobs else None
        self.output = OutputItems(printer, include_reasoning=self.request.include_reasoning)

    @property
    def is_stored(self) -> bool:
        """Whether the answer will be kept."""
        return self.request.store and self.store.is_on

    def add(self, event: Event) -> list[TypedEvent]:
        """Take one event of the generation in."""
        if isinstance(event, Finish):
            self.finish = event
        return self.output.add(event)

    def print(self, status: str, error: APIError | None = None) -> dict[str, Any]:
        """The response object as it is now."""
        is_over = status != "in_progress"
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.chat.id,
            "object": "response",
            "created_at": self.chat.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": _print_error(error) if error else None,
            "incomplete_details": reason,
            "model": self.chat.model.name,
            "output": list(self.output.items),
            "usage": self._usage() if is_over else None,
            **self._echo(),
        }

    def _echo(self) -> dict[str, Any]:
        """What was asked, as clients expect to find it in the answer."""
        request, defaults = self.request, self.chat.model.defaults
        effort = request.reasoning
        return {
            "background": False,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {"effort": effort.effort if effort else None, "summary": None},
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": self.is_stored,
            "temperature": defaults.temperature if request.temperature is None else request.temperature,
            "text": {
                "format": request.text.format or {"type": "text"},
                "verbosity": request.text.verbosity or "medium",
            },
            "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
            "tools": [_print_tool(tool) for tool in request.tools],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": defaults.top_p if request.top_p is None else request.top_p,
            "truncation": request.truncation,
            "user": request.user,
        }

    def _usage(self) -> dict[str, Any]:
        num_input = len(self.chat.prompt_token_ids)
        num_output = sum(self.chat.generation.num_output_tokens)
        num_cached = (self.chat.generation.num_cached_tokens or 0) if self.chat.reports_cached else 0
        return {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self.output.num_reasoning_tokens},
            "total_tokens": num_input + num_output,
        }

    async def print_final(self) -> dict[str, Any]:
        """The finished response, kept if that was asked for: before it is sent, so that it can be continued at once.

        Raises UnavailableError where the generation was aborted.
        """
        assert self.finish is not None, "a generation ends with a finish"
        if self.finish.finish_reason == "abort":
            raise UnavailableError("the generation was aborted")
        response = self.print("incomplete" if self.finish.finish_reason == "length" else "completed")
        if self.is_stored:
            await self.store.put(StoredResponse(response, self.items + read_items(response["output"])))
        return response


def _print_error(error: APIError) -> dict[str, str]:
    code = "server_error" if error.status >= _SERVER_ERROR_FROM else "invalid_prompt"
    return {"code": code, "message": error.message}


def _print_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **tool}


async def start_response(request: ResponsesRequest, state: ApiState, store: ResponseStore) -> ResponseJob:
    """Raises APIError."""
    new_items = read_items(request.input)
    items = await _recall(request.previous_response_id, store) + new_items
    messages = to_messages(items, request.instructions)
    chat = await start_fitting(request, messages, state)
    return ResponseJob(request, chat, store, items)


def make_store(request: Request) -> ResponseStore:
    """The store of this box, which all API workers share, as the caller's key sees it."""
    settings = get_state(request).settings
    folder = None if settings.run_dir is None else settings.run_dir / "responses"
    owner = get_key_name(request)
    return ResponseStore(folder, settings.responses_store_max, settings.responses_store_bytes, owner)


async def find_response(response_id: str, store: ResponseStore) -> StoredResponse:
    """Raises NotFoundError, also for a response that another key made."""
    stored = await store.get(response_id)
    if stored is None:
        raise _no_response(response_id)
    return stored


async def delete_stored(response_id: str, store: ResponseStore) -> None:
    """Raises NotFoundError, as `find_response` does."""
    if not await store.delete(response_id):
        raise _no_response(response_id)


def _no_response(response_id: str) -> NotFoundError:
    return NotFoundError(f"there is no stored response with the id {response_id[:64]!r}", param="response_id")


async def _recall(response_id: str | None, store: ResponseStore) -> list[Item]:
    if response_id is None:
        return []
    try:
        return (await find_response(response_id, store)).items
    except NotFoundError as error:
        raise NotFoundError(error.message, param="previous_response_id", code="previous_response_not_found") from None


async def collect_response(job: ResponseJob, stream: ChoiceStream) -> dict[str, Any]:
    """The whole answer. Raises what the stream raises."""
    while (batch := await stream.get()) is not None:
        for _, event in batch:
            job.add(event)
    return await job.print_final()
