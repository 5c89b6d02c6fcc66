"""The layers as one call of the C++ library, float32 activations."""

from __future__ import annotations

import ctypes

from torch import Tensor

from engine.kernels.attend.cpu import LayerCache, attention_struct
from engine.kernels.batch import StepBatch
from engine.kernels.decode import LayerParts
from engine.kernels.native.library import Attention, Cache, Layer, load_library
from engine.kernels.native.packing import PackedWeight


class NativeDecode:
    """Holds the layers' tensors, whose addresses the library gets; describes the caches at their first use."""

    def __init__(self, layers: list[LayerParts]) -> None:
        self._parts = layers
        self._eps = layers[0].norm_eps
        self._library = load_library()
        self._attentions = [attention_struct(parts.spec, parts.cos_sin) for parts in layers]
        self._caches: list[LayerCache] | None = None
        self._layers = (Layer * len(layers))()

    def __call__(self, x: Tensor, kv_cache: list[LayerCache], batch: StepBatch) -> None:
        """Update x[T, hidden] in place."""
        if x.shape[0] != batch.positions.shape[0] or not x.is_contiguous():
            raise ValueError(f"x {tuple(x.shape)} is not the contiguous residual stream of the batch's tokens")
        if self._caches is not kv_cache:
            self._caches = kv_cache
            described = zip(self._parts, kv_cache, self._attentions, strict=True)
            structs = [layer_struct(parts, cache.struct, attention) for parts, cache, attention in described]
            self._layers = (Layer * len(structs))(*structs)
        layers, view = ctypes.addressof(self._layers), kv_cache[0].view
        self._library.decode(x.data_ptr(), x.shape[1], layers, len(kv_cache), view.of(batch), self._eps)


def layer_struct(parts: LayerParts, cache: Cache, attention: Attention) -> Layer:
    """The C view of a layer; valid as long as the tensors of `parts` and the cache live."""
    norms = (parts.input_norm, parts.post_attention_norm, parts.q_norm, parts.k_norm)
    weights: tuple[PackedWeight, ...] = (parts.qkv, parts.o, parts.gate_up, parts.down)
    return Layer(
        *(None if norm is None else norm.data_ptr() for norm in norms),
        *(weight.struct for weight in weights),
        cache,
        attention,
    )
