"""Fewer, larger chunks: text waits until enough tokens of its choice came together (``--stream-interval``)."""

from __future__ import annotations

from appliance.api.choice_stream import Batch
from appliance.text.events import Content, Event, Reasoning


class Coalescer:
    """Joins events of text. A choice's first text never waits, nor does text before another kind of event."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._waiting: dict[int, Content | Reasoning] = {}
        self._begun: set[int] = set()

    def join(self, batch: Batch) -> Batch:
        """What of these events, and of those that waited, is due."""
        if self._interval == 1:
            return batch
        due: Batch = []
        for index, event in batch:
            self._join_one(index, event, due)
        return due

    def _join_one(self, index: int, event: Event, due: Batch) -> None:
        waiting = self._waiting.get(index)
        if waiting is not None and type(event) is type(waiting):
            _append(waiting, event)
        else:
            due += self._release(index)
            if not isinstance(event, (Content, Reasoning)):
                due.append((index, event))
                return
            waiting = self._waiting[index] = event
        if index not in self._begun or len(waiting.token_ids) >= self._interval:
            self._begun.add(index)
            due += self._release(index)

    def _release(self, index: int) -> Batch:
        waiting = self._waiting.pop(index, None)
        return [] if waiting is None else [(index, waiting)]

    def release_all(self) -> Batch:
        """What still waits, for a stream that ends early."""
        return [item for index in list(self._waiting) for item in self._release(index)]


def _append(waiting: Content | Reasoning, event: Event) -> None:
    assert isinstance(event, (Content, Reasoning))
    waiting.text += event.text
    waiting.token_ids = waiting.token_ids + event.token_ids
    if event.logprobs is not None:
        waiting.logprobs = (waiting.logprobs or []) + event.logprobs
