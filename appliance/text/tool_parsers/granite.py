"""Granite 3: ``<|tool_call|>[{…}, …]`` or ``<tool_call>[…]``; the array is its own end."""

from __future__ import annotations

from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class GraniteToolParser(JsonBlockParser):
    """See the module."""

    start_markers = ("<|tool_call|>", "<tool_call>")
    end_markers = ()
