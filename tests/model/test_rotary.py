"""The rotary table against transformers' for every scaling, and the rule for `dynamic` beyond the model's context."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.errors import ConfigError
from engine.layers.rotary import RopeConfig, make_cos_sin
from engine.models.config import parse_model_config
from tests.tiny_models import BASE

CPU = torch.device("cpu")
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 16,
        "beta_slow": 2,
    },
}


def theirs(scaling: dict[str, Any]) -> LlamaRotaryEmbedding:
    rope = {"rope_theta": 500.0} | scaling
    return LlamaRotaryEmbedding(transformers.LlamaConfig(**(BASE | {"head_dim": 32, "rope_parameters": rope})))


def ours(scaling: dict[str, Any]) -> RopeConfig:
    raw = BASE | {"head_dim": 32, "rope_theta": 500.0, "rope_scaling": scaling, "architectures": ["LlamaForCausalLM"]}
    return parse_model_config(raw).rope


def table(module: LlamaRotaryEmbedding, positions: Tensor) -> Tensor:
    cos, sin = module(torch.zeros(1), positions[None])
    return torch.cat([cos[0, :, :16], sin[0, :, :16]], dim=-1)


@pytest.mark.parametrize("name", SCALINGS)
def test_table_equals_transformers(name: str) -> None:
    found = make_cos_sin(ours(SCALINGS[name]), 256, CPU)
    torch.testing.assert_close(found, table(theirs(SCALINGS[name]), torch.arange(256)), atol=2e-5, rtol=0)


def test_dynamic_beyond_the_context_equals_token_by_token() -> None:
    module = theirs(SCALINGS["dynamic"])
    expected = [table(module, torch.arange(256))]
    expected += [table(module, torch.tensor([position])) for position in range(256, 300)]
    found = make_cos_sin(ours(SCALINGS["dynamic"]), 300, CPU)
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=0)


def test_longest_context() -> None:
    def longest(scaling: dict[str, Any]) -> int:
        raw = BASE | {"rope_scaling": scaling, "architectures": ["LlamaForCausalLM"]}
        return parse_model_config(raw).max_len

    assert longest(SCALINGS["default"]) == longest(SCALINGS["linear"]) == longest(SCALINGS["llama3"]) == 256
    assert longest(SCALINGS["dynamic"]) == 1024
    assert longest(SCALINGS["yarn"]) == 256
    assert longest({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}) == 512


def test_partial_rotation_is_refused() -> None:
    with pytest.raises(ConfigError, match="partial_rotary_factor"):
        parse_model_config(BASE | {"partial_rotary_factor": 0.5, "architectures": ["LlamaForCausalLM"]})
