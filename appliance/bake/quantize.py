"""Packs matrices at bake, so that starting is mapping: which tensors, in which format, how big.

A source that is quantized already keeps its codes where the format can hold them (`block_codes`, `checkpoints`); what
has to be rounded is rounded once, in groups of 32 input channels. Norms and biases stay floats.
"""

from __future__ import annotations

from collections import Counter
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
FLOAT8 = ("fp8", "fp8_block")
INT4 = ("int4", "int4_a8")
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
        from engine.kernels.packed import packed_bytes

        return packed_bytes(self.shape, self.format, is_gate_up=self.is_gate_up)

    @property
    def code_format(self) -> str:
        """What a source must have codes for."""
        return "int4" if self.format in INT4 else self.format

    @property
    def is_float8(self) -> bool:
        """Whether the layout is that of a float8 checkpoint, and not the CPU kernels' own."""
        return self.format in FLOAT8

    def describe(self) -> list[Any]:
        """For the file's metadata."""
        return [self.format, *self.shape, self.is_gate_up]


@dataclass(frozen=True)
class PackingPlan:
    """Name → packing of the tensors that are packed, and what somebody who bakes should know of the others."""

    packings: dict[str, Packing]
    notes: tuple[str, ...] = ()

    @property
    def formats(self) -> str | None:
        """What the matrices are packed as, for the manifest."""
        names = {packing.format.removesuffix("_block") for packing in self.packings.values()}
        return ", ".join(sorted(names)) or None


def plan_packing(
    plan: list[FusedTensor], config: dict[str, Any], weights: Weights, quantization: str, dtype: str
) -> PackingPlan:
    """How each tensor is packed. Raises BakeError for a quantization that there is not."""
    if quantization not in QUANTIZATIONS:
        raise BakeError(f"quantization {quantization} is not supported; supported are {', '.join(QUANTIZATIONS)}")
    if quantization == "none":
        return PackingPlan({})
    if quantization == "auto":
        found = _own_packings(plan, weights, dtype)
    else:
        found = PackingPlan({t.name: _packing(t, quantization) for t in plan if _is_packed(t.name, config)})
    if any(not packing.is_float8 for packing in found.packings.values()):
        _require_library()
    return found


def pack_tensor(tensor: FusedTensor, weights: Weights, packing: Packing) -> memoryview:
    """The packed bytes of one baked matrix."""
    codes = [weights.codes(part, packing.code_format) for part in tensor.parts]
    exact = [found for found in codes if found is not None]
    if packing.is_float8:
        return _join_float8(exact)
    packed = _pack_codes(exact, packing) if len(exact) == len(codes) else _pack_floats(tensor, weights, packing)
    return packed.data.numpy().data


def _own_packings(plan: list[FusedTensor], weights: Weights, dtype: str) -> PackingPlan:
    """Keep what a quantized checkpoint has, as far as all parts of a fused matrix have it alike."""
    packings: dict[str, Packing] = {}
    reasons: Counter[str] = Counter()
    for tensor in plan:
        fits = [weights.own_format(part) for part in tensor.parts]
        found = [fit for fit in fits if fit is not None]
        if not found:
            continue
        formats = {fit.format if fit else None for fit in fits}
        format = formats.pop() if len(formats) == 1 else None
        if format is None:
            apart = "only some of the layers that are fused into one are quantized, or in different ways"
            reasons[next((fit.reason for fit in found if fit.reason), apart)] += 1
        else:
            packings[tensor.name] = _packed_as(tensor, format)
    notes = tuple(
        f"{count} matri{'x is' if count == 1 else 'ces are'} written as {dtype}: {why}"
        for why, count in reasons.items()
    )
    if any(packing.is_float8 for packing in packings.values()):
        notes += ("float8 codes are kept for a GPU; a CPU computes with them as bfloat16, made when the engine starts",)
    return PackingPlan(packings, notes)


def _is_packed(name: str, config: dict[str, Any]) -> bool:
    """A tied embedding is the head's matrix, too; an untied one is only looked up and stays a table."""
    return name.endswith(_MATRICES) or (name == "embed_tokens.weight" and bool(config["tie_word_embeddings"]))


def _packing(tensor: FusedTensor, quantization: str) -> Packing:
    """The head keeps eight bits under int4: its rounding is what an answer feels most."""
    is_head = tensor.name in ("embed_tokens.weight", "lm_head.weight")
    return _packed_as(tensor, "int8" if is_head and quantization in INT4 else quantization)


def _packed_as(tensor: FusedTensor, format: str) -> Packing:
    is_gate_up = tensor.name.endswith("gate_up_proj.weight") and format not in FLOAT8
    return Packing(format, (tensor.shape[0], tensor.shape[1]), is_gate_up)


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


def _join_float8(codes: list[Codes]) -> memoryview:
    """Scales [groups, rows] as float32, then codes [rows, k]."""
    scales = np.concatenate([part.scales for part in codes]).T.astype("<f4", order="C")
    return memoryview(b"".join([scales.tobytes(), *(part.codes.tobytes() for part in codes)]))


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
