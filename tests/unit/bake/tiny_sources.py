"""Tiny sources to bake: Hugging Face folders and GGUF files of every architecture, with known weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import pre_tokenizers

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
SPECIALS = ["<unk>", "<s>", "</s>"]
Tensors = dict[str, NDArray[Any]]


def tokenizer_json() -> dict[str, Any]:
    """A byte-level tokenizer with one merge: 260 tokens."""
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [["a", "b"]]},
    }


VOCAB = len(tokenizer_json()["model"]["vocab"])


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """A config.json."""
    return {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def weights(settings: dict[str, Any], dtype: Any = np.float32) -> Tensors:
    """Random tensors under Hugging Face names, as the architecture and its flags ask for."""
    rng = np.random.default_rng(0)
    shapes = dict(_shapes(settings))
    return {name: rng.standard_normal(shape, np.float32).astype(dtype) for name, shape in shapes.items()}


def _shapes(settings: dict[str, Any]) -> Any:
    architecture = settings["architectures"][0]
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    if not settings["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB, HIDDEN)
    qkv_bias = architecture == "Qwen2ForCausalLM" or settings.get("attention_bias", False)
    linears = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN, qkv_bias),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN, qkv_bias),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN, qkv_bias),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM, settings.get("attention_bias", False)),
        "mlp.gate_proj": (INNER, HIDDEN, settings.get("mlp_bias", False)),
        "mlp.up_proj": (INNER, HIDDEN, settings.get("mlp_bias", False)),
        "mlp.down_proj": (HIDDEN, INNER, settings.get("mlp_bias", False)),
    }
    for layer in range(settings["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        if architecture == "Qwen3ForCausalLM":
            yield prefix + "self_attn.q_norm.weight", (HEAD_DIM,)
            yield prefix + "self_attn.k_norm.weight", (HEAD_DIM,)
        for name, (rows, columns, bias) in linears.items():
            yield f"{prefix}{name}.weight", (rows, columns)
            if bias:
                yield f"{prefix}{name}.bias", (rows,)


def write_folder(
    folder: Path,
    settings: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
    *,
    shards: int = 1,
    tokenizer_config: dict[str, Any] | None = None,
) -> Tensors:
    """Write a Hugging Face folder and return its tensors."""
    settings = settings or config()
    tensors = weights(settings) if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        _write_shards(folder, tensors, shards)
    return tensors


def _write_shards(folder: Path, tensors: Tensors, shards: int) -> None:
    mapping = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        save_file(part, folder / name)
        mapping |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapping}))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, part = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def pair_rows(tensor: NDArray[Any], heads: int) -> NDArray[Any]:
    """Hugging Face's half-split rotary rows → the pairs side by side of llama GGUF files."""
    split = tensor.reshape(heads, 2, HEAD_DIM // 2, *tensor.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(tensor.shape)


def write_gguf(
    path: Path,
    settings: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
    *,
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
    keys: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    tokens: list[str] | None = None,
    raw: dict[str, tuple[NDArray[np.uint8], gguf.GGMLQuantizationType]] | None = None,
) -> Tensors:
    """Write a GGUF file; returns the tensors under Hugging Face names as float32 before quantization.

    `types` quantizes tensors by Hugging Face name ("*" = all matrices), `raw` gives finished blocks by GGUF name,
    `keys` sets or overrides metadata, `drop` leaves keys or tensors out.
    """
    settings = settings or config()
    arch = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama"}.get(settings["architectures"][0])
    arch = arch or settings["model_type"]
    tensors = weights(settings) if tensors is None else tensors
    writer = gguf.GGUFWriter(path, arch)
    _write_keys(writer, _metadata(settings, arch, tokens) | (keys or {}), drop)
    for name, tensor in tensors.items():
        if gguf_name(name) not in drop and gguf_name(name) not in (raw or {}):
            _write_tensor(writer, name, tensor, arch, types or {})
    for name, (blocks, kind) in (raw or {}).items():
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _metadata(settings: dict[str, Any], arch: str, tokens: list[str] | None) -> dict[str, Any]:
    tokens = tokens or list(tokenizer_json()["model"]["vocab"])
    return {
        f"{arch}.block_count": settings["num_hidden_layers"],
        f"{arch}.context_length": settings["max_position_embeddings"],
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": INNER,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.key_length": HEAD_DIM,
        f"{arch}.attention.value_length": HEAD_DIM,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": settings["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _write_keys(writer: gguf.GGUFWriter, keys: dict[str, Any], drop: tuple[str, ...]) -> None:
    for key, value in keys.items():
        if key in drop:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value:
            writer.add_array(key, value)


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: NDArray[Any], arch: str, types: dict[str, gguf.GGMLQuantizationType]
) -> None:
    if arch == "llama" and ".q_proj" in name:
        tensor = pair_rows(tensor, HEADS)
    if arch == "llama" and ".k_proj" in name:
        tensor = pair_rows(tensor, KV_HEADS)
    kind = types.get(name, types.get("*") if tensor.ndim > 1 else None)
    if kind is None:
        writer.add_tensor(gguf_name(name), tensor)
    else:
        writer.add_tensor(gguf_name(name), gguf.quantize(tensor, kind), raw_dtype=kind)


def baked_tensors(folder: Path) -> Tensors:
    """The baked tensors as float32 (by the official reader where it can: numpy has no bfloat16)."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    result = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__" or name.startswith("_padding."):
            continue
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        assert start % 64 == 0, name
        result[name] = _as_float32(data[start:stop], entry["dtype"]).reshape(entry["shape"])
    return result


def _as_float32(data: bytes, dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def fused(tensors: Tensors, settings: dict[str, Any]) -> Tensors:
    """What a bake of these tensors must hold."""
    result = {"embed_tokens.weight": tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"]}
    if not settings["tie_word_embeddings"]:
        result["lm_head.weight"] = tensors["lm_head.weight"]
    for layer in range(settings["num_hidden_layers"]):
        for name, parts in _FUSED.items():
            for kind in ("weight", "bias"):
                keys = [f"model.layers.{layer}.{part}.{kind}" for part in parts]
                if keys[0] in tensors:
                    result[f"layers.{layer}.{name}.{kind}"] = np.concatenate([tensors[key] for key in keys])
    return result


_FUSED = {
    "input_norm": ("input_layernorm",),
    "post_attention_norm": ("post_attention_layernorm",),
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}


def assert_same(found: Tensors, expected: Tensors) -> None:
    """Equal names and equal values."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.astype(np.float32), err_msg=name)
