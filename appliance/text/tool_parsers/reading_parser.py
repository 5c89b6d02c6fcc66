"""A tool parser written as one reading of the text; see `appliance.text.text_reader`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from appliance.text.events import Event
from appliance.text.text_reader import Reading, TextReader
from appliance.text.tool_parsers.base import ToolParser
from appliance.text.tool_parsers.call_writer import CallWriter
from appliance.text.tool_parsers.json_calls import JsonCallReader


class ReadingToolParser(ToolParser):
    """Subclasses write `parse`: read from ``self.reader``, write to ``self.writer``."""

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self.reader = TextReader()
        self.writer = CallWriter(self.make_call_id)
        self.is_cut = False
        self._parsing = self.parse()

    @abstractmethod
    def parse(self) -> Reading[None]:
        """Read the whole text."""

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        self.reader.push(text)
        next(self._parsing, None)
        return self.writer.drain()

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back when the text ended."""
        self.is_cut = is_cut
        self.reader.end()
        next(self._parsing, None)
        self.writer.content(self.reader.rest)
        self.writer.finish()
        return self.writer.drain()


class MarkedToolParser(ReadingToolParser):
    """Calls follow a marker; all other text is content. A block that holds no call is content too, marker included."""

    start_markers: Sequence[str]
    end_markers: Sequence[str] = ()  # closes a block
    stray_markers: Sequence[str] | None = None  # end markers to drop where they stand alone after a call; None = all
    inner_markers: Sequence[str] = ()  # other special tokens inside blocks

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self.markers = (*self.start_markers, *self.end_markers, *self.inner_markers)

    def parse(self) -> Reading[None]:
        """Content, marker, block, content, …"""
        strays = self.end_markers if self.stray_markers is None else self.stray_markers
        markers = (*self.start_markers, *strays)
        while marker := (yield from self.reader.pass_until(markers, self.writer.content)):
            if marker in self.start_markers:
                yield from self.parse_marked(marker)
            elif not self.writer.num_calls:
                self.writer.content(marker)

    @abstractmethod
    def parse_block(self, marker: str) -> Reading[bool]:
        """Read the calls after a marker and what closes them. False where there is none: nothing was written then."""

    def take_end(self) -> Reading[None]:
        """Read over white space and one end marker, if they come next."""
        yield from self.reader.skip()
        for marker in self.end_markers:
            if (yield from self.reader.take(marker)):
                return

    def parse_marked(self, marker: str) -> Reading[None]:
        """What follows a marker, as calls or as content."""
        self.reader.mark()
        if not (yield from self.parse_block(marker)):
            self.writer.content(marker + self.reader.since_mark())
        self.reader.unmark()


class JsonBlockParser(MarkedToolParser):
    """After the marker stand calls as JSON objects, one or more, or an array of them."""

    needs_arguments = False

    def parse_block(self, marker: str) -> Reading[bool]:
        """Calls and the end marker."""
        yield from self.reader.skip()
        is_call = yield from self.parse_calls()
        if is_call and self.end_markers:
            yield from self.take_end()
        return is_call

    def parse_calls(self) -> Reading[bool]:
        """An array, or objects in a row. False where there is no call."""
        calls = JsonCallReader(self.reader, self.writer, needs_arguments=self.needs_arguments)
        if (yield from self.reader.peek()) == "[":
            return (yield from calls.read_array())
        is_call = yield from calls.read_call()
        while is_call and (yield from self._is_call_next()):
            yield from calls.read_call()
        return is_call

    def _is_call_next(self) -> Reading[bool]:
        if not self.end_markers:
            return False
        yield from self.reader.skip()
        return (yield from self.reader.peek()) == "{"
