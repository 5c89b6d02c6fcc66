"""Jamba and Hunyuan: ``<tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>``."""

from __future__ import annotations

from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class JambaToolParser(JsonBlockParser):
    """See the module."""

    start_markers = ("<tool_calls>",)
    end_markers = ("</tool_calls>",)
