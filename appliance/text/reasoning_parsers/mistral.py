"""Mistral's Magistral: ``[THINK]…[/THINK]``."""

from __future__ import annotations

from appliance.text.reasoning_parsers.think_tags import ThinkTagsParser


class MistralParser(ThinkTagsParser):
    """Think tags, spelled otherwise."""

    start_tag, end_tag = "[THINK]", "[/THINK]"


class SeedOssParser(ThinkTagsParser):
    """ByteDance Seed's think tags."""

    start_tag, end_tag = "<seed:think>", "</seed:think>"
