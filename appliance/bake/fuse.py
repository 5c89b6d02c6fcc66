"""Which source tensors become which baked tensors: names, order, expected shapes. Moves no bytes (see `writer`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from appliance.bake.source import Weights
from appliance.errors import BakeError


@dataclass(frozen=True)
class FusedTensor:
    """One baked tensor: the rows of `parts`, one below the other."""

    name: str
    parts: tuple[str, ...]
    part_shapes: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The baked shape."""
        return (sum(shape[0] for shape in self.part_shapes), *self.part_shapes[0][1:])

    @property
    def num_elements(self) -> int:
        """Values in the tensor."""
        return prod(self.shape)


def plan_tensors(config: dict[str, Any], weights: Weights) -> list[FusedTensor]:
    """All baked tensors in file order. Raises BakeError where a tensor is missing, left over or of another shape."""
    plan = []
    for tensor in _model(config):
        _check_parts(tensor, weights)
        plan.append(tensor)
    _refuse_leftovers(plan, config, weights)
    return plan


def is_tied(config: dict[str, Any], weights: Weights) -> bool:
    """Whether the head shares the embedding; where the config is silent the missing head decides."""
    tied = config.get("tie_word_embeddings")
    return "lm_head.weight" not in weights.names() if tied is None else bool(tied)


def _model(config: dict[str, Any]) -> Iterator[FusedTensor]:
    embedding = (config["vocab_size"], config["hidden_size"])
    yield FusedTensor("embed_tokens.weight", ("model.embed_tokens.weight",), (embedding,))
    for layer in range(config["num_hidden_layers"]):
        yield from _layer(config, f"layers.{layer}.")
    yield FusedTensor("norm.weight", ("model.norm.weight",), ((config["hidden_size"],),))
    if not config["tie_word_embeddings"]:
        yield FusedTensor("lm_head.weight", ("lm_head.weight",), (embedding,))


def _layer(config: dict[str, Any], prefix: str) -> Iterator[FusedTensor]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield _single(prefix, "input_norm.weight", "input_layernorm.weight", (hidden,))
    yield from _attention(config, prefix)
    yield _single(prefix, "post_attention_norm.weight", "post_attention_layernorm.weight", (hidden,))
    bias = config["mlp_bias"]
    yield from _linear(prefix, "gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"), (inner, inner), hidden, bias)
    yield from _linear(prefix, "down_proj", ("mlp.down_proj",), (hidden,), inner, bias)


def _attention(config: dict[str, Any], prefix: str) -> Iterator[FusedTensor]:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_rows, kv_rows = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    qwen2, qwen3 = (config["architectures"] == [f"{name}ForCausalLM"] for name in ("Qwen2", "Qwen3"))
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    yield from _linear(prefix, "qkv_proj", parts, (q_rows, kv_rows, kv_rows), hidden, config["attention_bias"])
    if qwen3:
        yield _single(prefix, "q_norm.weight", "self_attn.q_norm.weight", (head_dim,))
        yield _single(prefix, "k_norm.weight", "self_attn.k_norm.weight", (head_dim,))
    out_bias = config["attention_bias"] and not qwen2
    yield from _linear(prefix, "o_proj", ("self_attn.o_proj",), (hidden,), q_rows, out_bias)


def _linear(
    prefix: str, name: str, parts: tuple[str, ...], rows: tuple[int, ...], columns: int, bias: bool
) -> Iterator[FusedTensor]:
    sources = [f"model.{prefix}{part}" for part in parts]
    yield FusedTensor(
        f"{prefix}{name}.weight", tuple(f"{s}.weight" for s in sources), tuple((size, columns) for size in rows)
    )
    if bias:
        yield FusedTensor(f"{prefix}{name}.bias", tuple(f"{s}.bias" for s in sources), tuple((size,) for size in rows))


def _single(prefix: str, name: str, part: str, shape: tuple[int, ...]) -> FusedTensor:
    return FusedTensor(prefix + name, (f"model.{prefix}{part}",), (shape,))


def _check_parts(tensor: FusedTensor, weights: Weights) -> None:
    for part, expected in zip(tensor.parts, tensor.part_shapes, strict=True):
        if part not in weights.names():
            raise BakeError(f"tensor {part} is missing from the source")
        found = weights.shape(part)
        if found != expected:
            raise BakeError(f"tensor {part} has shape {list(found)}, the config asks for {list(expected)}")
        weights.dtype(part)


def _refuse_leftovers(plan: list[FusedTensor], config: dict[str, Any], weights: Weights) -> None:
    used = {part for tensor in plan for part in tensor.parts}
    left = [name for name in weights.names() if name not in used and not _may_be_dropped(name, config, weights)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise BakeError(f"tensor {min(left)}{more} is not part of a {config['architectures'][0]} with this config")


def _may_be_dropped(name: str, config: dict[str, Any], weights: Weights) -> bool:
    """Old checkpoints carry the rotary table, tied ones perhaps the head a second time, GPTQ ones biases of zeros."""
    if name.endswith(".bias"):
        return not weights.read(name, 0, weights.shape(name)[0]).any()
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and bool(config["tie_word_embeddings"]))
