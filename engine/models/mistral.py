"""Mistral: Llama with attention that looks back only `sliding_window` tokens, where the config sets it."""

from __future__ import annotations

from engine.models.decoder import DecoderForCausalLM


class MistralForCausalLM(DecoderForCausalLM):
    """Every layer has the config's window (None in later releases: full attention)."""
