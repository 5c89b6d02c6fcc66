"""Hermes, Qwen2.5, QwQ, Qwen3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, repeated."""

from __future__ import annotations

import json

from appliance.text.tool_parsers.base import CallFrame
from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class HermesToolParser(JsonBlockParser):
    """See the module."""

    start_markers = ("<tool_call>",)
    end_markers = ("</tool_call>",)

    @classmethod
    def frame(cls, name: str) -> CallFrame:
        """As the family's chat templates write it."""
        head = f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        return CallFrame("<tool_call>", head, "}\n</tool_call>")
