"""Ways in which models mark their thinking: one file each, found by name."""

from __future__ import annotations

from appliance.text.parser_registry import load_parser
from appliance.text.reasoning_parsers.base import ReasoningParser

REASONING_PARSERS: dict[str, str] = {}


def get_reasoning_parser(name: str) -> type[ReasoningParser]:
    """The parser class of a format. ApplianceError where there is none."""
    found: type[ReasoningParser] = load_parser(REASONING_PARSERS, name, "--reasoning-parser")
    return found
