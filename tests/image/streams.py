"""Clients that read a stream to its end, each in a thread of its own."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx

from tests.image.container import completion


class Stream(threading.Thread):
    """One stream of completion chunks; `error` is what a cut connection raised."""

    def __init__(self, url: str, max_tokens: int, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v1/completions"
        self._request = completion(max_tokens, stream=True, **fields)
        self.has_begun = threading.Event()
        self.status = 0
        self.lines: list[str] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Read until it ends, however it ends."""
        try:
            with httpx.stream("POST", self._url, json=self._request, timeout=300) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    self.lines.append(line)
                    if line.startswith("data: "):
                        self.has_begun.set()
        except httpx.HTTPError as error:
            self.error = error
        self.has_begun.set()

    @property
    def events(self) -> list[str]:
        """What its data lines hold."""
        return [line.removeprefix("data: ") for line in self.lines if line.startswith("data: ")]

    @property
    def is_complete(self) -> bool:
        """Whether all tokens came, and [DONE]."""
        if self.error is not None or self.status != 200 or self.events[-1:] != ["[DONE]"]:
            return False
        reasons = [choice["finish_reason"] for event in self.events[:-1] for choice in json.loads(event)["choices"]]
        return reasons[-1:] == ["length"]

    def describe(self) -> str:
        """For a message."""
        return f"status={self.status} error={self.error!r} last={self.lines[-4:]}"


def start_streams(url: str, count: int, max_tokens: int, **fields: Any) -> list[Stream]:
    """Start them and wait until each has its first chunk."""
    streams = [Stream(url, max_tokens, **fields) for _ in range(count)]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.has_begun.wait(120)
        assert stream.error is None, stream.describe()
    return streams


def check_complete(streams: list[Stream]) -> None:
    """Wait for all of them: each has all its tokens and [DONE]."""
    for stream in streams:
        stream.join(300)
    cut = [stream.describe() for stream in streams if not stream.is_complete]
    assert not cut, f"{len(cut)} of {len(streams)}: {cut}"
