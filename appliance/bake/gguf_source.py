"""A GGUF file as a `Source`: Hugging Face names over its tensors, rows dequantized and put in order when read."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from appliance.bake.block_codes import READERS, Codes, read_codes
from appliance.bake.gguf_config import make_config
from appliance.bake.gguf_file import GGUFFile
from appliance.bake.gguf_tokenizer import make_tokenizer, make_tokenizer_config
from appliance.bake.manifest import digest_file
from appliance.bake.source import Array, Progress, Provenance, Source, quiet
from appliance.bake.tokenizer_files import check_tokenizer
from appliance.errors import BakeError

TENSOR_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
)
_FLOATS = {"F32": ("float32", "<f4"), "F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2")}
_MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QUANT_SUFFIX = re.compile(r"[.\-_](?:i1[.\-_])?(?:I?Q\d\w*|BF16|F16|FP16|F32)$", re.IGNORECASE)
_IGNORED = ("rope_freqs.weight",)  # read into the config's rope_scaling


def open_gguf(
    path: Path,
    *,
    provenance: Provenance | None = None,
    licence: str | None = None,
    licence_text: bytes | None = None,
    progress: Progress = quiet,
) -> Source:
    """Read everything but the weights' bytes. Raises BakeError in one line that names the key or tensor."""
    file = GGUFFile(path)
    config = make_config(file)
    weights = GGUFWeights(file, config)
    config["dtype"] = weights.main_dtype()
    tokenizer_json = make_tokenizer(file, config["vocab_size"])
    check_tokenizer(tokenizer_json, config["vocab_size"])
    template = file.metadata.get("tokenizer.chat_template")
    return Source(
        name=_QUANT_SUFFIX.sub("", path.stem),
        provenance=provenance or Provenance("gguf", path.name, sha256=digest_file(path, progress).sha256),
        config=config,
        weights=weights,
        tokenizer_json=tokenizer_json,
        tokenizer_config=make_tokenizer_config(file),
        chat_template=template if isinstance(template, str) and template else None,
        generation_config=_generation_config(file, config),
        licence=file.metadata.get("general.license") or licence,
        licence_text=licence_text,
    )


class GGUFWeights:
    """The tensors of a GGUF file under their Hugging Face names (implements `source.Weights`)."""

    def __init__(self, file: GGUFFile, config: dict[str, Any]) -> None:
        self._file = file
        self._names = {hugging_face_name(name): name for name in file.tensors if name not in _IGNORED}
        self._half_head = int(config["head_dim"]) // 2 if file.metadata["general.architecture"] == "llama" else None

    def names(self) -> Collection[str]:
        """All tensors that the model is made of."""
        return self._names.keys()

    def dtype(self, name: str) -> str:
        """float16 and bfloat16 as they are; what is quantized comes as float32."""
        tensor = self._file.tensors[self._names[name]]
        if tensor.type_name not in TENSOR_TYPES:
            raise BakeError(
                f"{self._file.path.name}: tensor {self._names[name]} has type {tensor.type_name}, "
                f"supported are {', '.join(TENSOR_TYPES)}"
            )
        return _FLOATS[tensor.type_name][0] if tensor.type_name in _FLOATS else "float32"

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, rows first."""
        return self._file.tensors[self._names[name]].shape

    def read(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop) in Hugging Face's order, dequantized."""
        tensor = self._file.tensors[self._names[name]]
        values = _values(self._raw_rows(name, start, stop), tensor.type_name)
        return values[:, 0] if len(tensor.shape) == 1 else values

    def own_format(self, name: str) -> None:
        """A GGUF is packed only where --quantization says so."""

    def codes(self, name: str, format: str) -> Codes | None:
        """The blocks' own codes where `format` holds them."""
        tensor = self._file.tensors[self._names[name]]
        if tensor.type_name not in READERS:
            return None
        found = read_codes(self._raw_rows(name, 0, tensor.shape[0]), tensor.type_name)
        return found if found.format == format else None

    def _raw_rows(self, name: str, start: int, stop: int) -> Array:
        rows = self._file.rows(self._names[name])
        if self._half_head and name.rsplit(".", 2)[-2] in ("q_proj", "k_proj"):
            return rows[half_split_rows(start, stop, self._half_head)]
        return rows[start:stop]

    def main_dtype(self) -> str:
        """The dtype that all matrices share, else float32."""
        dtypes = {self.dtype(name) for name in self._names if len(self.shape(name)) > 1}
        return dtypes.pop() if len(dtypes) == 1 else "float32"


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of a tensor; names that we don't know stay (and are refused as left over)."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else name
    stem, _, kind = name.rpartition(".")
    return f"{_MODEL_NAMES[stem]}.{kind}" if stem in _MODEL_NAMES else name


def half_split_rows(start: int, stop: int, half_head: int) -> Array:
    """Where in the file the rows [start, stop) of half-split rotary order lie.

    llama files have the rotated pairs of a head side by side (x0 y0 x1 y1 …), Hugging Face all x before all y.
    """
    head, row = np.divmod(np.arange(start, stop), 2 * half_head)
    second, pair = np.divmod(row, half_head)
    return np.asarray(head * 2 * half_head + 2 * pair + second)


def _values(rows: Array, type_name: str) -> Array:
    if type_name in _FLOATS:
        return np.ascontiguousarray(rows).view(_FLOATS[type_name][1])
    from gguf import GGMLQuantizationType, dequantize

    with np.errstate(all="ignore"):  # a damaged scale gives NaN, which `dtypes.convert` reports by name
        return np.asarray(dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[type_name]), np.float32)


def _generation_config(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    """Which ids end an answer: end of sequence, of turn and of message, as far as the file names them."""
    found = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = list(dict.fromkeys(number for number in found if isinstance(number, int)))
    result: dict[str, Any] = {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
    if "bos_token_id" in config:
        result["bos_token_id"] = config["bos_token_id"]
    return result
