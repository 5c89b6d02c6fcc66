"""Granite 20B function calling: ``<function_call> {"name": …, "arguments": {…}}``, repeated."""

from __future__ import annotations

from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class Granite20bFcToolParser(JsonBlockParser):
    """See the module."""

    start_markers = ("<function_call>",)
    end_markers = ()
