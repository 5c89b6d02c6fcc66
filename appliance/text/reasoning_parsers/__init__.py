"""Ways in which models mark their thinking: one file each, found by name."""

from __future__ import annotations

from appliance.text.parser_registry import load_parser
from appliance.text.reasoning_parsers.base import ReasoningParser

_HERE = "appliance.text.reasoning_parsers"
REASONING_PARSERS: dict[str, str] = {
    "deepseek_r1": f"{_HERE}.deepseek_r1:DeepseekR1Parser",
    "deepseek_v3": f"{_HERE}.deepseek_r1:DeepseekV3Parser",
    "glm45": f"{_HERE}.qwen3:Qwen3Parser",
    "granite": f"{_HERE}.granite:GraniteParser",
    "hunyuan_a13b": f"{_HERE}.hunyuan_a13b:HunyuanA13bParser",
    "kimi_k2": f"{_HERE}.think_tags:ThinkTagsParser",
    "minimax_m2": f"{_HERE}.deepseek_r1:DeepseekR1Parser",
    "mistral": f"{_HERE}.mistral:MistralParser",
    "openai_gptoss": f"{_HERE}.openai_gptoss:OpenAIGptOssParser",
    "qwen3": f"{_HERE}.qwen3:Qwen3Parser",
    "seed_oss": f"{_HERE}.mistral:SeedOssParser",
    "think": f"{_HERE}.think_tags:ThinkTagsParser",
}


def get_reasoning_parser(name: str) -> type[ReasoningParser]:
    """The parser class of a format. ApplianceError where there is none."""
    found: type[ReasoningParser] = load_parser(REASONING_PARSERS, name, "--reasoning-parser")
    return found
