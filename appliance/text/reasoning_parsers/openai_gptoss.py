"""gpt-oss: the analysis channel is the thinking. With tools, the `openai` tool parser does this job as well."""

from __future__ import annotations

from appliance.text.harmony import MARKERS, read_harmony
from appliance.text.reasoning_parsers.reading_parser import ReadingReasoningParser
from appliance.text.reasoning_parsers.thought_writer import ThoughtWriter
from appliance.text.text_reader import Reading


class OpenAIGptOssParser(ReadingReasoningParser):
    """A call that nobody asked for is content."""

    markers = MARKERS

    def parse(self) -> Reading[None]:
        """All messages."""
        yield from read_harmony(self.reader, _WithoutCalls(self.writer))


class _WithoutCalls:
    def __init__(self, writer: ThoughtWriter) -> None:
        self.content = writer.content
        self.reasoning = writer.reasoning
        self.arguments = writer.content

    def start(self, name: str) -> None:
        """Its arguments are shown."""
