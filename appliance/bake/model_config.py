"""Makes one kind of config.json out of all: required sizes checked, defaults written out, rope in one spelling.

What the engine may rely on after this: `num_key_value_heads`, `head_dim`, `rope_theta`, `rope_scaling` (null or with
`rope_type`), `sliding_window` (null unless it is in use, then with `layer_types`), biases and tying are all there.
"""

from __future__ import annotations

from typing import Any

from appliance.errors import BakeError
from engine.models import ARCHITECTURES

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_MAX_SIZE = 2**24  # far above any model's sizes; a damaged number must not make us allocate
_ROPE_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_DROPPED = (
    *("_name_or_path", "torch_dtype", "rope_parameters", "transformers_version", "use_cache"),
    *("quantization_config", "compression_config"),  # what is left of it is in the weights
)
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def normalise_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Check and complete a Hugging Face config. Raises BakeError naming the field."""
    architecture = _architecture(raw)
    config = {key: value for key, value in raw.items() if key not in _DROPPED}
    config["architectures"] = [architecture]
    config.setdefault("model_type", _MODEL_TYPES.get(architecture))
    for key in _SIZES:
        config[key] = _positive(raw, key)
    config |= _head_sizes(config)
    if config["head_dim"] % 2:
        raise BakeError(f"config.json: head_dim {config['head_dim']} is odd, rotary embedding needs pairs")
    config |= _defaults(config)
    config |= normalise_rope(raw, int(config["max_position_embeddings"]))
    config |= _sliding_window(config, config.pop("layer_types", None), architecture)
    config |= _biases(config, architecture)
    return config


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    names = names if isinstance(names, list) else [names]
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    shown = ", ".join(map(str, names)) or f"(none; model_type {raw.get('model_type')})"
    raise BakeError(f"architecture {shown} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}")


def _positive(raw: dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIZE:
        raise BakeError(f"config.json: {key} must be a positive integer up to {_MAX_SIZE}, it is {value!r}")
    return value


def _head_sizes(config: dict[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    kv_heads = heads if config.get("num_key_value_heads") is None else _positive(config, "num_key_value_heads")
    if heads % kv_heads:
        raise BakeError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if config.get("head_dim") is None and config["architectures"] == ["Qwen3ForCausalLM"]:
        return {"num_key_value_heads": kv_heads, "head_dim": 128}  # its default does not follow from hidden_size
    if config.get("head_dim") is not None:
        return {"num_key_value_heads": kv_heads, "head_dim": _positive(config, "head_dim")}
    if config["hidden_size"] % heads:
        raise BakeError(f"config.json: hidden_size {config['hidden_size']} is not a multiple of the {heads} heads")
    return {"num_key_value_heads": kv_heads, "head_dim": config["hidden_size"] // heads}


def _defaults(config: dict[str, Any]) -> dict[str, Any]:
    activation = config.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise BakeError(f"config.json: hidden_act {activation} is not supported, only silu")
    eps = config.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, int | float) or eps <= 0:
        raise BakeError(f"config.json: rms_norm_eps must be a positive number, it is {eps!r}")
    context = config.get("max_position_embeddings", 2048)
    return {
        "hidden_act": "silu",
        "rms_norm_eps": float(eps),
        "max_position_embeddings": _positive({"max_position_embeddings": context}, "max_position_embeddings"),
    }


def normalise_rope(raw: dict[str, Any], max_position_embeddings: int) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` from the old spelling or from transformers 5's `rope_parameters`."""
    found = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise BakeError(f"config.json: rope_scaling must be an object, it is {found!r}")
    rope = dict(found)
    theta = rope.pop("rope_theta", raw.get("rope_theta", 10000.0))
    if not isinstance(theta, int | float) or theta <= 0:
        raise BakeError(f"config.json: rope_theta must be a positive number, it is {theta!r}")
    if float(rope.pop("partial_rotary_factor", None) or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise BakeError("config.json: partial_rotary_factor other than 1 is not supported")
    kind = rope.pop("rope_type", None) or rope.get("type") or "default"
    rope.pop("type", None)
    if kind not in ROPE_TYPES:
        raise BakeError(f"config.json: rope type {kind} is not supported; supported are {', '.join(ROPE_TYPES)}")
    scaling = None if kind == "default" else _rope_scaling(kind, rope, raw, max_position_embeddings)
    return {"rope_theta": float(theta), "rope_scaling": scaling}


def _rope_scaling(kind: str, rope: dict[str, Any], raw: dict[str, Any], context: int) -> dict[str, Any]:
    original = raw.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    if kind in ("dynamic", "yarn", "llama3"):
        rope["original_max_position_embeddings"] = original or context
    if kind == "yarn" and rope.get("factor") is None:
        rope["factor"] = context / rope["original_max_position_embeddings"]
    for key in _ROPE_NEEDS[kind]:
        if not isinstance(rope.get(key), int | float) or rope[key] <= 0:
            raise BakeError(f"config.json: rope scaling {kind} needs a positive {key}, it is {rope.get(key)!r}")
    return {"rope_type": kind} | rope


def _sliding_window(config: dict[str, Any], layer_types: Any, architecture: str) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    window = config.get("sliding_window", 4096 if architecture == "MistralForCausalLM" else None)
    if architecture == "LlamaForCausalLM" or (architecture.startswith("Qwen") and not config.get("use_sliding_window")):
        window = None
    if window is None:
        return {"sliding_window": None}
    _positive({"sliding_window": window}, "sliding_window")
    kinds = layer_types or _layer_types(layers, config.get("max_window_layers", 0), architecture)
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or set(map(str, kinds)) - {"full_attention", "sliding_attention"}
    ):
        raise BakeError(f"config.json: layer_types must name full_attention or sliding_attention for {layers} layers")
    return {"sliding_window": window, "layer_types": kinds}


def _layer_types(layers: int, max_window_layers: int, architecture: str) -> list[str]:
    first = max_window_layers if architecture.startswith("Qwen") else 0
    return ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]


def _biases(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Which projections have biases: Qwen2 q, k and v always; Llama and Qwen3 by `attention_bias`; Mistral none."""
    by_config = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    return {
        "attention_bias": architecture == "Qwen2ForCausalLM" or (by_config and bool(config.get("attention_bias"))),
        "mlp_bias": architecture == "LlamaForCausalLM" and bool(config.get("mlp_bias")),
    }
