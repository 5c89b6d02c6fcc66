"""Tool-call formats: one file each, found by name."""

from __future__ import annotations

from appliance.text.parser_registry import load_parser
from appliance.text.tool_parsers.base import ToolParser

_HERE = "appliance.text.tool_parsers"
TOOL_PARSERS: dict[str, str] = {
    "deepseek_v3": f"{_HERE}.deepseek_v3:DeepseekV3ToolParser",
    "deepseek_v31": f"{_HERE}.deepseek_v31:DeepseekV31ToolParser",
    "ernie45": f"{_HERE}.hermes:HermesToolParser",
    "glm45": f"{_HERE}.glm45:Glm45ToolParser",
    "glm47": f"{_HERE}.glm45:Glm45ToolParser",
    "granite": f"{_HERE}.granite:GraniteToolParser",
    "granite-20b-fc": f"{_HERE}.granite_20b_fc:Granite20bFcToolParser",
    "granite4": f"{_HERE}.hermes:HermesToolParser",
    "hermes": f"{_HERE}.hermes:HermesToolParser",
    "hunyuan_a13b": f"{_HERE}.jamba:JambaToolParser",
    "internlm": f"{_HERE}.internlm:InternlmToolParser",
    "jamba": f"{_HERE}.jamba:JambaToolParser",
    "kimi_k2": f"{_HERE}.kimi_k2:KimiK2ToolParser",
    "llama3_json": f"{_HERE}.llama3_json:Llama3JsonToolParser",
    "llama4_json": f"{_HERE}.llama3_json:Llama3JsonToolParser",
    "llama4_pythonic": f"{_HERE}.pythonic:PythonicToolParser",
    "longcat": f"{_HERE}.longcat:LongcatToolParser",
    "minimax_m2": f"{_HERE}.minimax_m2:MinimaxM2ToolParser",
    "mistral": f"{_HERE}.mistral:MistralToolParser",
    "openai": f"{_HERE}.openai:OpenAIToolParser",
    "phi4_mini_json": f"{_HERE}.phi4_mini_json:Phi4MiniJsonToolParser",
    "pythonic": f"{_HERE}.pythonic:PythonicToolParser",
    "qwen3_coder": f"{_HERE}.qwen3_coder:Qwen3CoderToolParser",
    "qwen3_xml": f"{_HERE}.qwen3_coder:Qwen3CoderToolParser",
    "seed_oss": f"{_HERE}.qwen3_coder:SeedOssToolParser",
    "xlam": f"{_HERE}.xlam:XlamToolParser",
}


def get_tool_parser(name: str) -> type[ToolParser]:
    """The parser class of a format. ApplianceError where there is none."""
    found: type[ToolParser] = load_parser(TOOL_PARSERS, name, "--tool-call-parser")
    return found
