"""DeepSeek V3.1: as V3, but ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>``."""

from __future__ import annotations

from appliance.text.text_reader import Reading
from appliance.text.tool_parsers.deepseek_v3 import CALL_BEGIN, CALL_END, CALLS_END, SEPARATOR, DeepseekV3ToolParser


class DeepseekV31ToolParser(DeepseekV3ToolParser):
    """The name comes first."""

    def read_name(self) -> Reading[str]:
        """The function's name, up to the separator."""
        name, separator = yield from self.reader.read_until((SEPARATOR, CALL_END, CALLS_END, CALL_BEGIN))
        return name.strip() if separator == SEPARATOR else ""
