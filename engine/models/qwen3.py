"""Qwen3 (dense): RMSNorm of each query and key head before the rotary embedding, and no biases unless asked for."""

from __future__ import annotations

from engine.layers.attention import Attention
from engine.layers.build import Build
from engine.models.decoder import DecoderForCausalLM


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Head size is free of hidden_size / num_attention_heads; windows as in Qwen2."""

    def make_attention(self, build: Build, index: int) -> Attention:
        """Attention with q_norm and k_norm."""
        return Attention(build, self.make_attention_spec(index), self._cos_sin, f"layers.{index}")
