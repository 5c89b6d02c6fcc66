"""Llama 2 and 3, SmolLM: the plain decoder; biases (attention_bias, mlp_bias) where the baked model has them."""

from __future__ import annotations

from engine.kernels.batch import AttentionSpec
from engine.models.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """Full attention in every layer, whatever a stray sliding_window in the config says."""

    def make_attention_spec(self, index: int) -> AttentionSpec:
        spec = super().make_attention_spec(index)
        return AttentionSpec(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale, None, spec.norm_eps)
