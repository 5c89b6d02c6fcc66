"""Tiny models in every format of quantized checkpoint that bake reads, and the floats that their codes mean.

Packing is written from each format's definition, bit by bit, and shares nothing with the code that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.tiny_models import BASE, save_byte_tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "tie_word_embeddings": False}
Parts = dict[str, Tensor]  # tensors of a linear layer under its name
Layer = tuple[Parts, Tensor]  # and the float32 weight that they mean


@dataclass(frozen=True)
class Kind:
    """A format: its quantization_config, and how it writes a weight [N, K]."""

    config: dict[str, Any]
    write: Callable[[Tensor], Layer]


@dataclass(frozen=True)
class QuantizedModel:
    """A folder with a quantized model, and the same model as floats."""

    source: Path
    truth: PreTrainedModel
    weights: dict[str, Tensor]  # what the codes mean, by Hugging Face name


def make_quantized_model(kind: Kind, folder: Path, ignore: tuple[str, ...] = ("lm_head",)) -> QuantizedModel:
    """Make and save a tiny Llama; layers whose name ends like one of `ignore` stay as they are."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(BASE | SIZES))).float().eval()
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    tensors, weights = load_file(folder / "model.safetensors"), {}
    for name in sorted(tensors):
        stem = name.removesuffix(".weight")
        if stem.endswith(("_proj", "lm_head")) and not stem.endswith(ignore):
            parts, weights[name] = kind.write(tensors.pop(name))
            tensors |= {f"{stem}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": kind.config}))
    model.load_state_dict(weights, strict=False)
    return QuantizedModel(folder, model, weights)


# --- integers ---


def quantize(weight: Tensor, bits: int, group: int, *, is_symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K] from 0, half-precision scales [N, groups] and zeros [N, groups]."""
    groups = weight.view(weight.shape[0], -1, group)
    top = 2**bits - 1
    if is_symmetric:
        scales, zeros = groups.abs().amax(-1) / (top // 2), torch.full(groups.shape[:2], (top + 1) // 2)
    else:
        low, high = groups.amin(-1), groups.amax(-1)
        scales, zeros = (high - low) / top, (-low / (high - low) * top).round().int()
    scales = scales.half().float()
    codes = (groups / scales[..., None]).round() + zeros[..., None]
    return codes.clamp(0, top).int().view_as(weight), scales, zeros.int()


def meant(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor | None = None) -> Tensor:
    """The weight of codes whose channels belong to these groups, in order and equally many unless told otherwise."""
    if group_of is None:
        group_of = torch.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1])
    return (codes - zeros[:, group_of]) * scales[:, group_of]


def pack_words(fields: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """int32 words of [rows, n] integers: field i of a word, from its lowest bits, is number order[i] of its run."""
    count = 32 // bits
    runs = torch.nn.functional.pad(fields.long(), (0, -fields.shape[1] % count)).view(fields.shape[0], -1, count)
    words = torch.zeros(runs.shape[:2], dtype=torch.int64)
    for place, number in enumerate(order or range(count)):
        words |= runs[..., number] << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).int()


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(group: int) -> Kind:
    """Output channels of an input channel side by side, in an order of their own."""

    def write(weight: Tensor) -> Layer:
        codes, scales, zeros = quantize(weight, 4, group, is_symmetric=False)
        parts = {
            "qweight": pack_words(codes.t(), 4, AWQ_ORDER),
            "qzeros": pack_words(zeros.t(), 4, AWQ_ORDER),
            "scales": scales.t().half(),
        }
        return parts, meant(codes, scales, zeros)

    return Kind({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}, write)


def gptq(bits: int, group: int | None, *, is_symmetric: bool, version: str = "gptq", is_ordered: bool = False) -> Kind:
    """Input channels of an output channel side by side; zeros less one in the first version."""

    def write(weight: Tensor) -> Layer:
        size = group or weight.shape[1]
        codes, scales, zeros = quantize(weight, bits, size, is_symmetric=is_symmetric)
        group_of = torch.arange(weight.shape[1]) // size
        if is_ordered:
            group_of = group_of[torch.randperm(weight.shape[1])]
        stored = zeros if version == "gptq_v2" else (zeros - 1) % 2**bits
        parts = {
            "qweight": pack_words(codes, bits).t(),
            "qzeros": pack_words(stored.t(), bits),
            "scales": scales.t().half(),
            "g_idx": group_of.int(),
            "bias": torch.zeros(weight.shape[0]),
        }
        return parts, meant(codes, scales, zeros, group_of)

    config = {"quant_method": "gptq", "bits": bits, "group_size": group or -1, "desc_act": is_ordered}
    return Kind(config | {"sym": is_symmetric, "checkpoint_format": version}, write)


def compressed(layout: str, weights: dict[str, Any]) -> dict[str, Any]:
    """compressed-tensors' quantization_config."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": groups,
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def packed(bits: int, group: int, *, is_symmetric: bool, has_int8_zeros: bool = False) -> Kind:
    """compressed-tensors' pack-quantized; older releases wrote zeros as int8 around 0."""

    def write(weight: Tensor) -> Layer:
        codes, scales, zeros = quantize(weight, bits, group, is_symmetric=is_symmetric)
        parts = {
            "weight_packed": pack_words(codes, bits),
            "weight_scale": scales.half(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if has_int8_zeros:
            parts["weight_zero_point"] = (zeros - 2 ** (bits - 1)).to(torch.int8)
        elif not is_symmetric:
            parts["weight_zero_point"] = pack_words(zeros.t(), bits).t()
        return parts, meant(codes, scales, zeros)

    weights = {"num_bits": bits, "type": "int", "symmetric": is_symmetric, "strategy": "group", "group_size": group}
    return Kind(compressed("pack-quantized", weights), write)


def _write_int8(weight: Tensor) -> Layer:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().float()
    codes = (weight / scales).round().clamp(-128, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scales.bfloat16()}, codes * scales


# --- float8 ---


def _float8(weight: Tensor, scales: Tensor) -> Layer:
    codes = (weight / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes}, codes.float() * scales


def _write_one_scale(weight: Tensor) -> Layer:
    scale = weight.abs().max() / 448
    parts, means = _float8(weight, scale)
    return parts | {"weight_scale": scale, "input_scale": torch.tensor(0.02)}, means


def _write_scale_a_row(weight: Tensor) -> Layer:
    scales = (weight.abs().amax(1, keepdim=True) / 448).bfloat16().float()
    parts, means = _float8(weight, scales)
    return parts | {"weight_scale": scales.bfloat16()}, means


def _write_blocks(weight: Tensor) -> Layer:
    rows, columns = weight.shape
    scales = torch.rand(-(-rows // 128), -(-columns // 128)) * 0.002 + 0.002
    spread = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    parts, means = _float8(weight, spread)
    return parts | {"weight_scale_inv": scales}, means


_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}

KINDS: dict[str, Kind] = {
    "awq": awq(64),
    "gptq": gptq(4, 32, is_symmetric=True),
    "gptq-asymmetric": gptq(4, 64, is_symmetric=False),
    "gptq-v2": gptq(4, 32, is_symmetric=False, version="gptq_v2"),
    "gptq-8-bits": gptq(8, None, is_symmetric=True),
    "gptq-8-bits-asymmetric": gptq(8, 32, is_symmetric=False),
    "gptq-act-order": gptq(4, 32, is_symmetric=True, is_ordered=True),
    "fp8": Kind({"quant_method": "fp8", "activation_scheme": "static"}, _write_one_scale),
    "fp8-blocks": Kind({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, _write_blocks),
    "compressed-fp8": Kind(compressed("float-quantized", _FLOAT8), _write_scale_a_row),
    "compressed-int8": Kind(compressed("int-quantized", _INT8), _write_int8),
    "compressed-w4a16": packed(4, 32, is_symmetric=True),
    "compressed-w4a16-asymmetric": packed(4, 64, is_symmetric=False),
    "compressed-w4a16-int8-zeros": packed(4, 32, is_symmetric=False, has_int8_zeros=True),
    "compressed-w8a16": packed(8, 64, is_symmetric=True),
}
