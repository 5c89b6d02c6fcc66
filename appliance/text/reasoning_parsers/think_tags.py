"""Thinking between two tags, ``<think>…</think>`` unless a subclass says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from appliance.text.reasoning_parsers.base import Thinking
from appliance.text.reasoning_parsers.reading_parser import ReadingReasoningParser
from appliance.text.text_reader import Reading


class ThinkTagsParser(ReadingReasoningParser):
    """The end of the prompt tells whether the template has opened (or closed) the thinking already.

    Where it tells nothing, the text is thinking only if it says so, unless ``is_open_at_start``.
    """

    start_tag, end_tag = "<think>", "</think>"
    is_open_at_start = False

    def __init__(self, prompt: str = "", template_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(prompt, template_kwargs)
        self.markers: Sequence[str] = (self.start_tag, self.end_tag)

    @property
    def is_thinking_on(self) -> bool:
        """Off, everything is content."""
        return True

    @property
    def thinking(self) -> Thinking | None:
        """The tags, unless thinking is off or over."""
        is_over = self.prompt.rstrip().endswith(self.end_tag)
        return Thinking(self.start_tag, self.end_tag, self._is_open()) if self.is_thinking_on and not is_over else None

    def parse(self) -> Reading[None]:
        """Thoughts and content in turn."""
        if not self.is_thinking_on:
            yield from self.reader.pass_rest(self.writer.content)
            return
        is_inside = yield from self._starts_inside()
        while True:
            if is_inside:
                yield from self.reader.pass_until((self.end_tag,), self.writer.reasoning)
                self.writer.end_thought()
            found = yield from self.parse_content()
            if found is None:
                return
            is_inside = True

    def parse_content(self) -> Reading[str | None]:
        """Content up to the next thought, if there is one."""
        return (yield from self.reader.pass_until((self.start_tag,), self.writer.content))

    def _starts_inside(self) -> Reading[bool]:
        self.reader.mark()
        yield from self.reader.skip()
        is_opened = yield from self.reader.take(self.start_tag)
        blank = self.reader.since_mark()
        self.reader.unmark()
        if is_opened or self._is_open():
            return True
        self.writer.content(blank)
        return False

    def _is_open(self) -> bool:
        prompt = self.prompt.rstrip()
        if prompt.endswith(self.start_tag):
            return True
        return self.is_open_at_start and not prompt.endswith(self.end_tag)
