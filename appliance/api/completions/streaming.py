"""Prints a completion's events as text_completion chunks: one choice a chunk, the finish with the last text."""

from __future__ import annotations

from typing import Any

from appliance.api.choice_stream import Batch
from appliance.api.completions.serving import ChoicePrinter, CollectedText, CompletionJob
from appliance.api.streaming import ChunkPrinter, TextChunks, sse
from appliance.api.usage import make_usage
from appliance.text.events import Finish


class CompletionPrinter(ChunkPrinter):
    """Prints one request."""

    def __init__(self, job: CompletionJob, *, include_usage: bool, continuous_usage: bool) -> None:
        self._job = job
        self._include_usage = include_usage
        self._continuous_usage = include_usage and continuous_usage
        self._printers = [ChoicePrinter(job, index) for index in range(job.num_choices)]
        self._unprinted = set(range(job.num_choices)) if job.request.echo else set()
        self._waits_for_prompt = job.request.echo and job.request.logprobs is not None
        self._held: Batch = []
        self._needs_empty = job.request.logprobs is not None or job.request.return_token_ids
        self._head = {"id": job.id, "object": "text_completion", "created": job.created, "model": job.model.name}
        request = job.request
        has_more = self._needs_empty or self._continuous_usage or request.echo or request.return_prompt_text
        self._is_plain = not (has_more or request.discards_output)  # all chunks of text differ in it only
        self._text_chunks = TextChunks(self._text_value, "text")

    def print(self, batch: Batch) -> list[bytes]:
        """Each event's chunk; a finish joins the chunk of the text right before it."""
        if self._is_plain and (printed_text := self._text_chunks.print(batch)):
            return printed_text
        if self._waits_for_prompt:
            batch = self._release(batch)
        pieces: list[tuple[int, CollectedText]] = []
        last: dict[int, CollectedText] = {}
        for index, event in batch:
            if index in last and isinstance(event, Finish):
                last[index].add(event)
                continue
            piece = CollectedText()
            piece.add(event)
            if self._is_worth_printing(index, piece):
                last[index] = piece
                pieces.append((index, piece))
        return [self._chunk(index, piece) for index, piece in pieces]

    def _text_value(self, index: int) -> dict[str, Any]:
        return {**self._head, "choices": [CollectedText().print(ChoicePrinter(self._job, index))]}

    def _release(self, batch: Batch) -> Batch:
        """The events of prompts whose logprobs are known; one choice brings them for all choices of its prompt."""
        ready: Batch = []
        held: Batch = []
        for item in self._held + batch:
            generation = self._job.generations[item[0] // self._job.request.n]
            (held if generation.prompt_logprobs is None else ready).append(item)
        self._held = held
        self._waits_for_prompt = any(generation.prompt_logprobs is None for generation in self._job.generations)
        return ready

    def _is_worth_printing(self, index: int, piece: CollectedText) -> bool:
        if piece.finish is not None or any(piece.text) or index in self._unprinted:
            self._unprinted.discard(index)
            return True
        self._printers[index].num_tokens += 0 if self._needs_empty else len(piece.token_ids)
        return self._needs_empty and bool(piece.token_ids)

    async def print_end(self) -> list[bytes]:
        """The usage of all choices."""
        if not self._include_usage:
            return []
        return [sse(self._head | {"choices": [], "usage": self._job.usage()})]

    def _chunk(self, index: int, piece: CollectedText) -> bytes:
        printer = self._printers[index]
        chunk: dict[str, Any] = {**self._head, "choices": [piece.print(printer)]}
        if self._continuous_usage:
            num_prompt = len(self._job.prompt_token_ids[index // self._job.request.n])
            chunk["usage"] = make_usage(num_prompt, printer.num_tokens, None)
        return sse(chunk)
