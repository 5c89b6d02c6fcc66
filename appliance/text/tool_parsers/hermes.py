"""Hermes, Qwen2.5, QwQ, Qwen3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, repeated."""

from __future__ import annotations

from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class HermesToolParser(JsonBlockParser):
    """See the module."""

    start_markers = ("<tool_call>",)
    end_markers = ("</tool_call>",)
