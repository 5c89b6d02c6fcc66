"""Qwen2 and Qwen2.5: biased q, k and v projections; windows from layer max_window_layers on, if switched on."""

from __future__ import annotations

from engine.layers.build import Build
from engine.models.config import ModelConfig
from engine.models.decoder import DecoderForCausalLM


class Qwen2ForCausalLM(DecoderForCausalLM):
    """The biases are part of the architecture: a baked model without them is broken, not unbiased."""

    def __init__(self, build: Build, config: ModelConfig, max_model_len: int) -> None:
        for index in range(config.num_hidden_layers):
            build.weights.get(f"layers.{index}.qkv_proj.bias")
        super().__init__(build, config, max_model_len)
