"""Hunyuan A13B: ``<think>…</think><answer>…</answer>``, each on lines of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.text.reasoning_parsers.think_tags import ThinkTagsParser
from appliance.text.text_reader import Reading

_ANSWER, _ANSWER_END = "<answer>", "</answer>"


class HunyuanA13bParser(ThinkTagsParser):
    """The answer's tags, and a newline inside of each, are dropped."""

    def __init__(self, prompt: str = "", template_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(prompt, template_kwargs)
        self.markers = (*self.markers, _ANSWER, _ANSWER_END)

    def parse_content(self) -> Reading[str | None]:
        """An answer is all there is after the thinking."""
        markers = (self.start_tag, _ANSWER, "\n" + _ANSWER_END, _ANSWER_END)
        while True:
            found = yield from self.reader.pass_until(markers, self.writer.content)
            if found is None or found == self.start_tag:
                return found
            if found == _ANSWER:
                yield from self.reader.take("\n")
