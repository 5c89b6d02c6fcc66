"""A reasoning parser written as one reading of the text; see `appliance.text.text_reader`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from appliance.text.events import Event
from appliance.text.reasoning_parsers.base import ReasoningParser
from appliance.text.reasoning_parsers.thought_writer import ThoughtWriter
from appliance.text.text_reader import Reading, TextReader


class ReadingReasoningParser(ReasoningParser):
    """Subclasses write `parse`: read from ``self.reader``, write to ``self.writer``."""

    def __init__(self, prompt: str = "", template_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(prompt, template_kwargs)
        self.reader = TextReader()
        self.writer = ThoughtWriter()
        self._parsing = self.parse()

    @abstractmethod
    def parse(self) -> Reading[None]:
        """Read the whole text."""

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        self.reader.push(text)
        next(self._parsing, None)
        return self.writer.drain()

    def finish(self) -> list[Event]:
        """What was held back when the text ended."""
        self.reader.end()
        next(self._parsing, None)
        return self.writer.drain()
