"""InternLM2: ``text<|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>``."""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class InternlmToolParser(JsonBlockParser):
    """An action of another kind than a plugin's is content."""

    start_markers = ("<|action_start|>",)
    end_markers = ("<|action_end|>",)
    inner_markers = ("<|plugin|>",)

    def parse_block(self, marker: str) -> Reading[bool]:
        """The plugin's call."""
        yield from self.reader.skip()
        return (yield from self.reader.take("<|plugin|>")) and (yield from super().parse_block(marker))
