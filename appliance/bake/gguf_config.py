"""GGUF metadata → a Hugging Face config. Knows the key names of the llama, qwen2 and qwen3 architectures."""

from __future__ import annotations

import math
from typing import Any

from appliance.bake.gguf_file import GGUFFile
from appliance.bake.model_config import normalise_config
from appliance.errors import BakeError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Keys that change the computation in a way that none of our models does, and the values at which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
}


def make_config(file: GGUFFile) -> dict[str, Any]:
    """A normalised config. Raises BakeError naming the key."""
    arch = file.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise BakeError(
            f"{file.path.name}: architecture {arch} is not supported in GGUF; supported are {', '.join(ARCHITECTURES)}"
        )
    reader = _Keys(file, arch)
    reader.refuse_unusual()
    config = _sizes(reader) | _flags(file) | _special_ids(file)
    head_dim = config["head_dim"]
    for key in ("attention.value_length", "rope.dimension_count"):
        if reader.integer(key, head_dim) != head_dim:
            raise BakeError(f"{file.path.name}: {arch}.{key} other than the head size {head_dim} is not supported")
    config["architectures"] = [ARCHITECTURES[arch]]
    config["rope_theta"] = reader.number("rope.freq_base", 10000.0)
    config["rope_scaling"] = _rope_scaling(reader, head_dim)
    return normalise_config(config | _window(reader))


def _sizes(reader: _Keys) -> dict[str, Any]:
    heads, hidden = reader.integer("attention.head_count"), reader.integer("embedding_length")
    return {
        "hidden_size": hidden,
        "intermediate_size": reader.integer("feed_forward_length"),
        "num_hidden_layers": reader.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "head_dim": reader.integer("attention.key_length", hidden // heads),
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": reader.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": _vocab_size(reader.file),
    }


def _flags(file: GGUFFile) -> dict[str, bool]:
    """What the config says in words shows in which tensors are there."""
    return {
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


class _Keys:
    """Typed access to the keys of one architecture."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def get(self, key: str) -> Any:
        value = self.file.metadata.get(f"{self.arch}.{key}")
        if not isinstance(value, list):
            return value
        if not value or any(item != value[0] for item in value):
            raise BakeError(f"{self.file.path.name}: {self.arch}.{key} differs from layer to layer: not supported")
        return value[0]

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise BakeError(f"{self.file.path.name}: {self.arch}.{key} must be a positive integer, it is {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise BakeError(f"{self.file.path.name}: {self.arch}.{key} must be a positive number, it is {value!r}")
        return float(value)

    def refuse_unusual(self) -> None:
        for key, neutral in _NEUTRAL.items():
            value = self.get(key)
            if value is not None and value not in neutral:
                raise BakeError(f"{self.file.path.name}: {self.arch}.{key} = {value} is not supported")
        if self.file.metadata.get("split.count", 0) > 1:
            raise BakeError(f"{self.file.path.name} is one part of a split GGUF; merge the parts first")


def _vocab_size(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise BakeError(f"{file.path.name}: tensor token_embd.weight is missing")
    return file.tensors["token_embd.weight"].shape[0]


def _rope_scaling(reader: _Keys, head_dim: int) -> dict[str, Any] | None:
    if "rope_freqs.weight" in reader.file.tensors:
        return _llama3_scaling(reader, head_dim)
    kind = reader.get("rope.scaling.type") or ("linear" if reader.get("rope.scale_linear") else "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise BakeError(f"{reader.file.path.name}: rope scaling {kind} is not supported; supported are linear and yarn")
    factor = reader.number("rope.scaling.factor" if reader.get("rope.scaling.factor") else "rope.scale_linear")
    return {"rope_type": "linear", "factor": factor} if kind == "linear" else _yarn_scaling(reader, factor)


def _yarn_scaling(reader: _Keys, factor: float) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    scaling["original_max_position_embeddings"] = reader.integer(
        "rope.scaling.original_context_length", max(1, int(reader.integer("context_length") / factor))
    )
    for key in ("beta_fast", "beta_slow"):
        if reader.get(f"rope.scaling.yarn_{key}") is not None:
            scaling[key] = reader.number(f"rope.scaling.yarn_{key}")
    attention = reader.number("rope.scaling.attn_factor", 1.0)
    if attention != 1.0:
        # There the factor multiplies YaRN's own temperature; in Hugging Face configs it replaces it.
        scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    return scaling


def _llama3_scaling(reader: _Keys, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling is stored as the table of factors that it yields; find the parameters that yield it."""
    import numpy as np

    file = reader.file
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise BakeError(f"{file.path.name}: rope_freqs.weight must be {head_dim // 2} float32 values")
    factors = file.rows("rope_freqs.weight").view("<f4")[:, 0].astype(np.float64)
    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = reader.number("rope.freq_base", 10000.0)
    if not np.allclose(factors, _llama3_factors(scaling, theta, head_dim), rtol=1e-3):
        raise BakeError(f"{file.path.name}: rope_freqs.weight does not hold the factors of llama3 rope scaling")
    return scaling


def _llama3_factors(scaling: dict[str, Any], theta: float, head_dim: int) -> Any:
    """By how much each frequency is divided: 1 for short waves, `factor` for long ones, a blend between (Llama 3.1)."""
    import numpy as np

    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (scaling["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    return 1.0 / ((1 - smooth) / scaling["factor"] + smooth)


def _window(reader: _Keys) -> dict[str, Any]:
    """A llama file with a window is a Mistral; the others don't use theirs."""
    if reader.arch != "llama" or reader.get("attention.sliding_window") is None:
        return {}
    return {
        "architectures": ["MistralForCausalLM"],
        "sliding_window": reader.integer("attention.sliding_window"),
    }


def _special_ids(file: GGUFFile) -> dict[str, Any]:
    ids = {}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        value = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(value, int):
            ids[f"{key}_token_id"] = value
    return ids
