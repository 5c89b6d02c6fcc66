"""What transformers says: logits, and whether a continuation is the greedy one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel


@torch.inference_mode()
def true_logits(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """[n, vocab] of one prompt, whole."""
    logits: Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def assert_greedy(model: PreTrainedModel, prompt: list[int], output: list[int]) -> None:
    """Each output token is the likeliest after all before it: by induction the model's own greedy continuation."""
    logits = true_logits(model, prompt + output[:-1])
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == output


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest absolute error over the range of the expected logits."""
    return float((found - expected).abs().max() / (expected.max() - expected.min()))


def load_baked_llama(baked: Path) -> PreTrainedModel:
    """transformers' Llama with a baked folder's weights, taken apart again."""
    raw = json.loads((baked / "config.json").read_text())
    config = transformers.LlamaConfig(**raw)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    weights = dict(_unfused(load_file(baked / "model.safetensors"), config))
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.float().eval()


def _unfused(fused: dict[str, Tensor], config: transformers.LlamaConfig) -> list[tuple[str, Tensor]]:
    query, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    parts = {
        "qkv_proj": (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], [query, kv, kv]),
        "gate_up_proj": (["mlp.gate_proj", "mlp.up_proj"], [config.intermediate_size] * 2),
        "o_proj": (["self_attn.o_proj"], [config.hidden_size]),
        "down_proj": (["mlp.down_proj"], [config.hidden_size]),
        "input_norm": (["input_layernorm"], [config.hidden_size]),
        "post_attention_norm": (["post_attention_layernorm"], [config.hidden_size]),
    }
    found = []
    for name, tensor in fused.items():
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        names, sizes = parts.get(part, ([part], [tensor.shape[0]]))
        for piece, rows in zip(names, tensor.split(sizes), strict=True):
            full = f"{prefix}.{piece}" if prefix else piece
            found.append(((full if full == "lm_head" else f"model.{full}") + ".weight", rows))
    return found
