"""DeepSeek R1 and others whose template opens the thinking: without a start tag the text is thinking all the same."""

from __future__ import annotations

from appliance.text.reasoning_parsers.think_tags import ThinkTagsParser


class DeepseekR1Parser(ThinkTagsParser):
    """Everything up to the end tag is thinking; all of it where there is no end tag."""

    is_open_at_start = True


class DeepseekV3Parser(DeepseekR1Parser):
    """DeepSeek V3.1: off unless the template was asked to let it think."""

    @property
    def is_thinking_on(self) -> bool:
        """``thinking`` or ``enable_thinking`` in chat_template_kwargs."""
        return bool(self.template_kwargs.get("thinking") or self.template_kwargs.get("enable_thinking"))
