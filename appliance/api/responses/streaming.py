"""Prints a response's events: created and in_progress first, items in brackets of added and done, its end last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from appliance.api.choice_stream import Batch
from appliance.api.responses.output_items import TypedEvent
from appliance.api.responses.serving import ResponseJob
from appliance.api.streaming import ChunkPrinter, typed_sse
from appliance.errors import APIError


class ResponsePrinter(ChunkPrinter):
    """Prints one request. The last event ends the stream; there is no [DONE]."""

    end = b""

    def __init__(self, job: ResponseJob) -> None:
        self._job = job
        self._sequence_number = 0

    def print(self, batch: Batch) -> list[bytes]:
        """All that these events tell."""
        chunks = self._open()
        for _, event in batch:
            chunks += self._number(self._job.add(event))
        return chunks

    async def print_end(self) -> list[bytes]:
        """The finished response."""
        response = await self._job.print_final()
        return [*self._open(), *self._number([_about(response)])]

    def print_error(self, error: APIError) -> list[bytes]:
        """What is open is closed, so that brackets pair, and the response has failed."""
        chunks = self._open()
        if self._job.finish is None:
            chunks += self._number(self._job.output.finish(is_cut=True))
        return chunks + self._number([_about(self._job.print("failed", error))])

    def _open(self) -> list[bytes]:
        if self._sequence_number:
            return []
        response = self._job.print("in_progress")
        return self._number([_about(response, "created"), _about(response)])

    def _number(self, events: Iterable[TypedEvent]) -> list[bytes]:
        chunks = []
        for event in events:
            chunks.append(typed_sse({**event, "sequence_number": self._sequence_number}))
            self._sequence_number += 1
        return chunks


def _about(response: dict[str, Any], name: str | None = None) -> TypedEvent:
    return {"type": f"response.{name or response['status']}", "response": response}
