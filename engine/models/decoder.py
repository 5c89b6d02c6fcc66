"""What Llama-like models share: a residual stream through layers of attention and SwiGLU, each behind an RMSNorm.

A model is a subclass that says what its attention is like; everything else is five fused ops a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels import KVLayer
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.decode import LayerParts, make_decode
from engine.kernels.native.packing import PackedWeight
from engine.layers.attention import Attention
from engine.layers.build import Build
from engine.layers.embedding import Embedding, Head
from engine.layers.linear import LinearAdd, NormLinear, NormSwiGLU
from engine.layers.rotary import make_cos_sin
from engine.models.config import ModelConfig
from engine.models.shard import Shard, make_shard


class DecoderLayer:
    """x += o(attention(qkv(norm(x)))); x += down(swiglu(norm(x)))."""

    def __init__(self, build: Build, config: ModelConfig, shard: Shard, prefix: str, attention: Attention) -> None:
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        input_norm, post_norm = f"{prefix}.input_norm", f"{prefix}.post_attention_norm"
        query_size, kv_size = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        query, kv = shard.heads.times(config.head_dim), shard.kv_heads.times(config.head_dim)
        qkv_rows = [query, kv.after(query_size), kv.after(query_size + kv_size)]
        self.attention = attention
        self.qkv_proj = NormLinear(
            build, input_norm, f"{prefix}.qkv_proj", hidden, query_size + 2 * kv_size, qkv_rows, eps
        )
        self.o_proj = LinearAdd(build, f"{prefix}.o_proj", query_size, hidden, query)
        self.gate_up_proj = NormSwiGLU(build, post_norm, f"{prefix}.gate_up_proj", hidden, inner, shard.inner, eps)
        self.down_proj = LinearAdd(build, f"{prefix}.down_proj", inner, hidden, shard.inner)

    def __call__(self, x: Tensor, kv_layer: KVLayer, batch: StepBatch) -> None:
        """Update the residual stream x[T, hidden] in place."""
        self.o_proj(x, self.attention(self.qkv_proj(x), kv_layer, batch))
        self.down_proj(x, self.gate_up_proj(x))

    @property
    def parts(self) -> LayerParts:
        """The same as data, for an implementation that runs all layers in one call."""
        return LayerParts(
            input_norm=self.qkv_proj.norm,
            post_attention_norm=self.gate_up_proj.norm,
            norm_eps=self.qkv_proj.eps,
            qkv=self.qkv_proj.weight,
            o=self.o_proj.weight,
            gate_up=self.gate_up_proj.weight,
            down=self.down_proj.weight,
            q_norm=self.attention.q_norm,
            k_norm=self.attention.k_norm,
            spec=self.attention.spec,
            cos_sin=self.attention.cos_sin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeParts:
    """A dense model in float32 activations, as the C++ library takes it."""

    embedding: Embedding
    layers: list[LayerParts]
    norm: Tensor  # [hidden]
    norm_eps: float
    head: PackedWeight


class DecoderForCausalLM:
    """Embedding, layers, head. Subclasses build the attention of layer i."""

    def __init__(self, build: Build, config: ModelConfig, max_model_len: int) -> None:
        self.config = config
        self._shard = shard = make_shard(config, build.group.rank, build.group.size)
        self._cos_sin = make_cos_sin(config.rope, max_model_len, build.device)
        self._embed = Embedding(build, "embed_tokens", config.hidden_size, shard.vocabulary)
        self._layers = [
            DecoderLayer(build, config, shard, f"layers.{index}", self.make_attention(build, index))
            for index in range(config.num_hidden_layers)
        ]
        self._decode = None
        if build.group.size == 1:  # ranks exchange sums amid a layer
            self._decode = make_decode(build.ops.implementation, [layer.parts for layer in self._layers])
        head = "embed_tokens" if config.is_tied else "lm_head"
        self._head = Head(build, "norm", head, config.hidden_size, shard.vocabulary, config.rms_norm_eps)

    def make_attention(self, build: Build, index: int) -> Attention:
        """Attention of layer `index`: full, unless the config gives the layer a window."""
        return Attention(build, self.make_attention_spec(index), self._cos_sin)

    def make_attention_spec(self, index: int) -> AttentionSpec:
        """Heads of this rank and window of layer `index`."""
        config = self.config
        return AttentionSpec(
            num_heads=self._shard.heads.size,
            num_kv_heads=self._shard.kv_heads.size,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            sliding_window=config.sliding_windows[index],
            norm_eps=config.rms_norm_eps,
        )

    @property
    def native_parts(self) -> NativeParts | None:
        """The model as data, for decode steps that are calls of the C++ library; None where there are ops beside it."""
        if self._decode is None:
            return None
        return NativeParts(
            embedding=self._embed,
            layers=[layer.parts for layer in self._layers],
            norm=self._head.norm,
            norm_eps=self._head.eps,
            head=self._head.weight,
        )

    def forward(self, token_ids: Tensor, batch: StepBatch, kv_cache: list[KVLayer]) -> Tensor:
        """token_ids[T] to the last hidden state [T, hidden], before the final norm; fills the KV cache."""
        x = self._embed(token_ids)
        if self._decode is not None:
            self._decode(x, kv_cache, batch)
            return x
        for layer, kv_layer in zip(self._layers, kv_cache, strict=True):
            layer(x, kv_layer, batch)
        return x

    def compute_logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """Logits of the tokens rows[n] (int64, ascending) of x[T, hidden] as float32 [n, vocab]."""
        return self._head(x, rows)

    def pick_likeliest(self, x: Tensor, rows: Tensor) -> list[int]:
        """The likeliest tokens alone; no logits need to be kept for that."""
        return self._head.pick_likeliest(x, rows)
