"""Qwen3 (and GLM 4.5): think tags, unless ``enable_thinking`` is false."""

from __future__ import annotations

from appliance.text.reasoning_parsers.think_tags import ThinkTagsParser


class Qwen3Parser(ThinkTagsParser):
    """Without a known prompt an answer that does not open the thinking itself had it opened by the template."""

    @property
    def is_open_at_start(self) -> bool:  # type: ignore[override]
        """A known prompt says it itself."""
        return not self.prompt

    @property
    def is_thinking_on(self) -> bool:
        """Off where the request turned it off."""
        return self.template_kwargs.get("enable_thinking") is not False
