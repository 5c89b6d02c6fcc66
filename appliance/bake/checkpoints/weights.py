"""A quantized Hugging Face folder as `source.Weights`: codes where a packed format holds a layer, else floats."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from appliance.bake.block_codes import GROUP, Codes
from appliance.bake.checkpoints.bits import has_nan
from appliance.bake.checkpoints.modules import Module, find_modules
from appliance.bake.checkpoints.schemes import Scheme
from appliance.bake.safetensors_file import SafetensorsWeights
from appliance.bake.source import Array, Fit
from appliance.errors import BakeError

FP8_BLOCK = 128  # input channels that share a scale in the packed format fp8_block (engine.kernels.packed)
# Scales of what we don't quantize as the checkpoint's maker did: activations (scaled row by row) and the KV cache.
_UNUSED = ("input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "kv_scale")


class QuantizedWeights:
    """Plain tensors as they are, quantized layers under the names that their weights would have."""

    def __init__(self, files: SafetensorsWeights, scheme: Scheme) -> None:
        self._files = files
        self._modules = find_modules(files, scheme)
        # Copies of a few at a time: what a module keeps of its scales would add up over all.
        self._opened = lru_cache(maxsize=4)(lambda name: replace(self._modules[name]))
        taken = {module.tensor(part) for module in self._modules.values() for part in module.parts}
        unused = {name for name in files.names() if name.rpartition(".")[2] in _UNUSED}
        self._plain = [name for name in files.names() if name not in taken | unused]
        self._fit = cache(self._find_fit)

    def names(self) -> Collection[str]:
        """Hugging Face's names of the unquantized model."""
        return dict.fromkeys([*self._plain, *self._modules])

    def dtype(self, name: str) -> str:
        """float32 for what is dequantized when it is read."""
        return "float32" if name in self._modules else self._files.dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The weight's shape, output channels first."""
        return self._modules[name].shape if name in self._modules else self._files.shape(name)

    def read(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop), dequantized."""
        if name not in self._modules:
            return self._files.read(name, start, stop)
        return self._opened(name).values(start, stop)

    def own_format(self, name: str) -> Fit | None:
        """How a quantized layer can be kept; None for a plain tensor."""
        return self._fit(name) if name in self._modules else None

    def codes(self, name: str, format: str) -> Codes | None:
        """A layer's own codes where `format` is the one that holds them."""
        if name not in self._modules or self._fit(name).format != format:
            return None
        module = self._opened(name)
        codes = np.ascontiguousarray(module.codes(0, module.shape[0]))
        if format not in ("int4", "int8"):
            if has_nan(codes):
                raise BakeError(f"tensor {name} holds NaN or infinite values")
            scales = module.scales if format == "fp8" else _by_run(module, module.scales, FP8_BLOCK)
            return Codes(format, codes, scales, None)
        scales = _by_run(module, module.scales.astype(np.float16), GROUP)
        return Codes(format, codes.astype(np.int8), scales, _minima(module, scales) if format == "int4" else None)

    def main_dtype(self) -> str:
        """The dtype of most of what is not quantized."""
        return self._files.main_dtype(self._plain)

    def _find_fit(self, name: str) -> Fit:
        module = self._opened(name)
        return _fit_float8(module) if module.format == "fp8" else _fit_integers(module)


def _fit_float8(module: Module) -> Fit:
    if module.scales.shape[1] == 1:
        return Fit("fp8")
    if _groups_of_runs(module, FP8_BLOCK) is None:
        return Fit(None, f"blocks of float8 that are no multiple of {FP8_BLOCK} input channels have no kernel")
    return Fit("fp8_block")


def _fit_integers(module: Module) -> Fit:
    if _groups_of_runs(module, GROUP) is None:
        is_scattered = bool((np.diff(module.group_of) < 0).any())
        how = "scattered over the input channels (act-order)" if is_scattered else f"no multiple of {GROUP} channels"
        return Fit(None, f"the groups that share a scale are {how}")
    if not _fits_half(module.scales):
        return Fit(None, "scales do not fit in half precision")
    if module.format == "int8" and module.zeros is not None and module.zeros.any():
        return Fit(None, "eight bits with a zero point have no kernel")
    return Fit(module.format)


def _groups_of_runs(module: Module, size: int) -> Array | None:
    """The group of each run of `size` input channels; None where a run has several, or int groups a short last run."""
    group_of = module.group_of
    firsts = group_of[::size]
    is_whole = module.format == "fp8" or len(group_of) % size == 0
    return firsts if is_whole and np.array_equal(np.repeat(firsts, size)[: len(group_of)], group_of) else None


def _fits_half(scales: Array) -> bool:
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16).astype(np.float32)
    return bool((np.abs(halves - scales) <= np.abs(scales) * 2.0**-10).all())


def _by_run(module: Module, factors: Array, size: int) -> Array:
    """[rows, groups] to [rows, runs of `size` input channels]."""
    groups = _groups_of_runs(module, size)
    assert groups is not None
    return np.ascontiguousarray(factors[:, groups])


def _minima(module: Module, scales: Array) -> Array:
    """float16 -scale · zero by run; exact for a zero of 8, else rounded by 2^-11 of itself."""
    zeros = np.int16(8) if module.zeros is None else _by_run(module, module.zeros, GROUP)
    return np.asarray(-scales.astype(np.float32) * zeros, np.float16)
