"""The box's parsers of what models say beside their text: chosen by the settings, found once at start."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.settings import Settings
from appliance.text.parser_registry import load_parser
from appliance.text.reasoning_parsers import get_reasoning_parser
from appliance.text.reasoning_parsers.base import ReasoningParser
from appliance.text.tool_parsers import TOOL_PARSERS
from appliance.text.tool_parsers.base import ToolParser


@dataclass(frozen=True, slots=True)
class Parsers:
    """``tools`` is None where tool_choice "auto" is not available."""

    tools: type[ToolParser] | None = None
    reasoning: type[ReasoningParser] | None = None


def load_parsers(settings: Settings) -> Parsers:
    """Raises ApplianceError for names that mean nothing and settings that do not go together."""
    reasoning = get_reasoning_parser(settings.reasoning_parser) if settings.reasoning_parser else None
    plugin = _load_plugin(settings.tool_parser_plugin) if settings.tool_parser_plugin else {}
    tools = _find_tool_parser(settings.tool_call_parser, plugin) if settings.tool_call_parser else None
    if settings.enable_auto_tool_choice and tools is None:
        raise ApplianceError("--enable-auto-tool-choice needs --tool-call-parser")
    return Parsers(tools if settings.enable_auto_tool_choice else None, reasoning)


def _find_tool_parser(name: str, plugin: Mapping[str, type[ToolParser]]) -> type[ToolParser]:
    if name in plugin:
        return plugin[name]
    registry = {**TOOL_PARSERS, **dict.fromkeys(plugin, "")}
    found: type[ToolParser] = load_parser(registry, name, "--tool-call-parser")
    return found


def _load_plugin(path: Path) -> Mapping[str, type[ToolParser]]:
    """The file's ``TOOL_PARSERS``: name → ToolParser class."""
    spec = importlib.util.spec_from_file_location("breadbox_tool_parser_plugin", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ApplianceError(f"--tool-parser-plugin: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ApplianceError(f"--tool-parser-plugin: {path} cannot be loaded: {error!r}") from error
    parsers = getattr(module, "TOOL_PARSERS", None)
    if not isinstance(parsers, dict) or not all(_is_parser(parser) for parser in parsers.values()):
        raise ApplianceError(f"--tool-parser-plugin: {path} has no TOOL_PARSERS, a dict of ToolParser classes by name")
    return parsers


def _is_parser(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, ToolParser)
