"""LongCat: ``<longcat_tool_call>{…}</longcat_tool_call>``, repeated."""

from __future__ import annotations

from appliance.text.tool_parsers.reading_parser import JsonBlockParser


class LongcatToolParser(JsonBlockParser):
    """See the module."""

    start_markers = ("<longcat_tool_call>",)
    end_markers = ("</longcat_tool_call>",)
