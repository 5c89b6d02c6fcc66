"""One layer's attention between its two projections: q/k norm, rotary embedding, KV cache and the attention itself."""

from __future__ import annotations

from torch import Tensor

from engine.kernels import KVLayer
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.layers.build import Build


class Attention:
    """Bound to its spec, the model's rotary table and, where the architecture has them, q/k norm weights."""

    def __init__(self, build: Build, spec: AttentionSpec, cos_sin: Tensor, norm_prefix: str | None = None) -> None:
        self._op = build.ops.attend
        self.spec = spec
        self.cos_sin = cos_sin
        self.q_norm = self.k_norm = None
        if norm_prefix is not None:
            self.q_norm = build.vector(f"{norm_prefix}.q_norm.weight", spec.head_dim)
            self.k_norm = build.vector(f"{norm_prefix}.k_norm.weight", spec.head_dim)

    def __call__(self, qkv: Tensor, kv_layer: KVLayer, batch: StepBatch) -> Tensor:
        """qkv[T, (H+2KV)*D] to [T, H*D]; writes the step's keys and values to kv_layer."""
        return self._op(qkv, kv_layer, batch, self.cos_sin, self.spec, self.q_norm, self.k_norm)
