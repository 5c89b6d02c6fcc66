"""Answers a message request: its generation, and the message object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from appliance.api.choice_stream import ChoiceStream
from appliance.api.conversation.job import ChatJob
from appliance.api.messages.answer_blocks import AnswerBlocks, TypedEvent
from appliance.api.messages.schemas import MessagesRequest
from appliance.errors import UnavailableError
from appliance.text.events import Event, Finish

StopReason = tuple[str | None, str | None]


@dataclass
class MessageJob:
    """One message on its way."""

    request: MessagesRequest
    chat: ChatJob
    answer: AnswerBlocks = field(init=False)
    finish: Finish | None = None

    def __post_init__(self) -> None:
        """Nothing has been said yet."""
        self.answer = AnswerBlocks(shows_thinking=self.request.shows_thinking)

    def add(self, event: Event) -> list[TypedEvent]:
        """Take one event of the generation in."""
        if isinstance(event, Finish):
            self.finish = event
        return self.answer.add(event)

    def print(self) -> dict[str, Any]:
        """The message as it is now."""
        stop_reason, stop_sequence = self.stop_reason()
        return {
            "id": self.chat.id,
            "type": "message",
            "role": "assistant",
            "model": self.chat.model.name,
            "content": list(self.answer.blocks),
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": self.usage(),
        }

    def stop_reason(self) -> StopReason:
        """Why it ended and, where that was one, the stop sequence. Raises UnavailableError where it was aborted."""
        if self.finish is None:
            return None, None
        if self.finish.finish_reason == "abort":
            raise UnavailableError("the generation was aborted")
        if self.finish.finish_reason == "length":
            return "max_tokens", None
        if isinstance(self.finish.stop_reason, str):
            return "stop_sequence", self.finish.stop_reason
        return ("tool_use" if self.answer.has_calls else "end_turn"), None

    def usage(self) -> dict[str, int]:
        """Tokens so far; those that came from the prefix cache are counted apart."""
        generation = self.chat.generation
        num_cached = (generation.num_cached_tokens or 0) if self.chat.reports_cached else 0
        return {
            "input_tokens": len(self.chat.prompt_token_ids) - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": sum(generation.num_output_tokens),
        }


async def collect_message(job: MessageJob, stream: ChoiceStream) -> dict[str, Any]:
    """The whole answer. Raises what the stream raises."""
    while (batch := await stream.get()) is not None:
        for _, event in batch:
            job.add(event)
    return job.print()
