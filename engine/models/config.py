"""config.json of a baked model, checked and typed. Anything a model cannot run with is a ConfigError here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.layers.rotary import RopeConfig
from engine.models import ARCHITECTURES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder. Names are Hugging Face's."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    is_tied: bool  # the head is the embedding table
    sliding_windows: tuple[int | None, ...]  # one a layer
    rope: RopeConfig
    eos_token_ids: frozenset[int]

    @property
    def max_len(self) -> int:
        """The longest context that makes sense: rotary scaling can stretch the model's own."""
        own = self.max_position_embeddings
        if self.rope.rope_type == "dynamic":
            return int(own * self.rope.number("factor"))
        if self.rope.rope_type == "yarn":
            return max(own, int(self.rope.original_max_position_embeddings * self.rope.number("factor", 1.0)))
        return own

    @property
    def context_cost(self) -> float:
        """Multiplications of a token with each token before it, as a part of those with the layers' weights."""
        heads = self.num_attention_heads * self.head_dim
        projections = self.hidden_size * 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        return 2 * heads / (projections + 3 * self.hidden_size * self.intermediate_size)


def load_model_config(folder: Path) -> ModelConfig:
    """Read config.json and generation_config.json (its EOS ids go before the model's). Raises ConfigError."""
    raw = _read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    eos = generation.get("eos_token_id")
    return parse_model_config(raw, raw.get("eos_token_id") if eos is None else eos)


def parse_model_config(raw: dict[str, Any], eos_token_id: int | list[int] | None = None) -> ModelConfig:
    """Check and type a config.json."""
    num_heads = _count(raw, "num_attention_heads")
    num_kv_heads = _count(raw, "num_key_value_heads", num_heads)
    hidden_size = _count(raw, "hidden_size")
    head_dim = _count(raw, "head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"config.json: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    if head_dim % 2:
        raise ConfigError(f"config.json: head_dim {head_dim} is odd; rotary embedding needs pairs")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"config.json: hidden_act {raw['hidden_act']!r} is not supported (supported: silu)")
    return ModelConfig(
        architecture=_architecture(raw),
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_hidden_layers=_count(raw, "num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=_count(raw, "max_position_embeddings"),
        is_tied=bool(raw.get("tie_word_embeddings", False)),
        sliding_windows=_sliding_windows(raw),
        rope=_rope(raw, head_dim),
        eos_token_ids=_token_ids(eos_token_id),
    )


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or ["none"]
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    raise ConfigError(
        f"architecture {', '.join(map(str, names))} is not supported (supported: {', '.join(sorted(ARCHITECTURES))})"
    )


def _count(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def _sliding_windows(raw: dict[str, Any]) -> tuple[int | None, ...]:
    """Which layers look back only so far: by layer_types where the config lists them, else as the family does."""
    layers = range(_count(raw, "num_hidden_layers"))
    is_qwen = _architecture(raw).startswith("Qwen")
    if raw.get("sliding_window") is None or not raw.get("use_sliding_window", not is_qwen):
        return (None,) * len(layers)
    window = _count(raw, "sliding_window")
    types = raw.get("layer_types")
    if types:
        return tuple(window if types[layer] == "sliding_attention" else None for layer in layers)
    first = int(raw.get("max_window_layers", 28)) if is_qwen else 0
    return tuple(window if layer >= first else None for layer in layers)


def _rope(raw: dict[str, Any], head_dim: int) -> RopeConfig:
    # Baked models hold rope_theta and rope_scaling; rope_parameters is the newer spelling of both.
    scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    theta = raw.get("rope_theta") or scaling.get("rope_theta") or 10_000.0
    if scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (None, 1.0):
        raise ConfigError("config.json: partial_rotary_factor other than 1 is not supported")
    rope_type = str(scaling.get("rope_type", scaling.get("type", "default")))
    trained = raw.get("original_max_position_embeddings")
    if trained is not None:
        scaling["original_max_position_embeddings"] = trained
    return RopeConfig(float(theta), head_dim, _count(raw, "max_position_embeddings"), rope_type, scaling)


def _token_ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return value
