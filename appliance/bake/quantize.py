"""Packs matrices at bake for the CPU kernels, so that starting is mapping: which tensors, in which format, how big.

A source that is quantized already keeps its codes where the format can hold them (`block_codes`); what has to be
rounded is rounded once, in groups of 32 input channels. Norms and biases stay floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from appliance.bake import QUANTIZATIONS
from appliance.bake.block_codes import Codes
from appliance.bake.fuse import FusedTensor
from appliance.bake.source import Array, Weights
from appliance.errors import BakeError

if TYPE_CHECKING:
    from torch import Tensor

    from engine.kernels.native.packing import PackedWeight

METADATA_KEY = "breadbox.packed"  # in the file's metadata: name → [format, rows, columns, is gate and up]
_MATRICES = ("qkv_proj.weight", "o_proj.weight", "gate_up_proj.weight", "down_proj.weight", "lm_head.weight")


@dataclass(frozen=True)
class Packing:
    """How one baked matrix is packed."""

    format: str
    shape: tuple[int, int]
    is_gate_up: bool

    @property
    def num_bytes(self) -> int:
        """Size of the packed form."""
        from engine.kernels.native.packing import packed_bytes

        return packed_bytes(*self.shape, _format(self.format), is_gate_up=self.is_gate_up)

    def describe(self) -> list[Any]:
        """For the file's metadata."""
        return [self.format, *self.shape, self.is_gate_up]


def plan_packing(plan: list[FusedTensor], config: dict[str, Any], quantization: str) -> dict[str, Packing]:
    """Name → packing of the tensors that are packed. Raises BakeError for a quantization that there is not."""
    if quantization not in QUANTIZATIONS:
        raise BakeError(f"quantization {quantization} is not supported; supported are {', '.join(QUANTIZATIONS)}")
    if quantization == "none":
        return {}
    _require_library()
    return {t.name: _packing(t, quantization) for t in plan if _is_packed(t.name, config)}


def pack_tensor(tensor: FusedTensor, weights: Weights, packing: Packing) -> memoryview:
    """The packed bytes of one baked matrix."""
    codes = [weights.codes(part, packing.format) for part in tensor.parts]
    exact = [found for found in codes if found is not None]
    packed = _pack_codes(exact, packing) if len(exact) == len(codes) else _pack_floats(tensor, weights, packing)
    return packed.data.numpy().data


def _is_packed(name: str, config: dict[str, Any]) -> bool:
    """A tied embedding is the head's matrix, too; an untied one is only looked up and stays a table."""
    return name.endswith(_MATRICES) or (name == "embed_tokens.weight" and bool(config["tie_word_embeddings"]))


def _packing(tensor: FusedTensor, quantization: str) -> Packing:
    """The head keeps eight bits under int4: its rounding is what an answer feels most."""
    is_head = tensor.name in ("embed_tokens.weight", "lm_head.weight")
    format = "int8" if is_head and quantization == "int4" else quantization
    return Packing(format, (tensor.shape[0], tensor.shape[1]), tensor.name.endswith("gate_up_proj.weight"))


def _require_library() -> None:
    from engine.errors import ConfigError
    from engine.kernels.native.library import load_library

    try:
        load_library()
    except ConfigError as error:
        raise BakeError(f"packing needs the compiled CPU kernels: {error}") from None


def _format(name: str) -> Any:
    from engine.kernels.native.library import Format

    return Format[name.upper()]


def _pack_codes(codes: list[Codes], packing: Packing) -> PackedWeight:
    from engine.kernels.native.packing import pack_codes

    merged = [_joined([getattr(part, field) for part in codes]) for field in ("codes", "scales", "minima")]
    return pack_codes(
        _tensor(merged[0]),
        _tensor(merged[1]),
        None if merged[2] is None else _tensor(merged[2]),
        _format(packing.format),
        is_gate_up=packing.is_gate_up,
    )


def _joined(parts: list[Array | None]) -> Any:
    return None if parts[0] is None else np.concatenate([part for part in parts if part is not None])


def _pack_floats(tensor: FusedTensor, weights: Weights, packing: Packing) -> PackedWeight:
    from appliance.bake.dtypes import convert
    from engine.kernels.native.packing import pack

    rows = [
        convert(weights.read(part, 0, shape[0]), weights.dtype(part), "float32", part)
        for part, shape in zip(tensor.parts, tensor.part_shapes, strict=True)
    ]
    return pack(_tensor(np.concatenate(rows)), _format(packing.format), is_gate_up=packing.is_gate_up)


def _tensor(array: Array) -> Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))
