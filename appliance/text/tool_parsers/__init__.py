"""Tool-call formats: one file each, found by name."""

from __future__ import annotations

from appliance.text.parser_registry import load_parser
from appliance.text.tool_parsers.base import ToolParser

TOOL_PARSERS: dict[str, str] = {}


def get_tool_parser(name: str) -> type[ToolParser]:
    """The parser class of a format. ApplianceError where there is none."""
    found: type[ToolParser] = load_parser(TOOL_PARSERS, name, "--tool-call-parser")
    return found
