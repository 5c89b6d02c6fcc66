"""GGUF files: config from metadata, tensors of every type, rotary rows put back in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from appliance.bake import bake, verify
from appliance.bake.gguf_file import GGUFFile
from appliance.bake.gguf_source import TENSOR_TYPES, GGUFWeights, half_split_rows, open_gguf
from appliance.baked_model import BakedModel
from appliance.errors import BakeError
from tests.unit.bake import tiny_sources as tiny

VARIANTS = [
    tiny.config(),
    tiny.config(tie_word_embeddings=True),
    tiny.config(attention_bias=True, mlp_bias=True),
    tiny.config("Qwen2ForCausalLM"),
    tiny.config("Qwen3ForCausalLM", tie_word_embeddings=True),
]
PLAIN_TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
# Where the float16 scales lie in a block of each type (bytes): random bytes there would be NaN now and then.
K_TYPES = {
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
    Type.IQ4_XS: (0,),
}


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda s: s["architectures"][0])
def test_a_gguf_bakes_to_what_its_hugging_face_folder_bakes_to(tmp_path: Path, settings: dict[str, Any]) -> None:
    tensors = tiny.write_gguf(tmp_path / "Tiny-Q8_0.gguf", settings)
    baked = BakedModel(bake(str(tmp_path / "Tiny-Q8_0.gguf"), tmp_path / "baked"))
    tiny.assert_same(tiny.baked_tensors(baked.path), tiny.fused(tensors, settings))
    assert verify(baked.path) == []
    for key in set(settings) - {"attention_bias"}:
        assert baked.config[key] == settings[key], key
    assert baked.name == "Tiny"
    assert baked.manifest["source"]["kind"] == "gguf"
    assert baked.generation_config == {"eos_token_id": 2, "bos_token_id": 1}


@pytest.mark.parametrize("kind", PLAIN_TYPES, ids=lambda kind: kind.name)
def test_tensor_types_give_what_the_gguf_package_dequantizes(tmp_path: Path, kind: Type) -> None:
    settings = tiny.config()
    tensors = tiny.write_gguf(tmp_path / "m.gguf", settings, types={"*": kind})
    # Quantization works on single rows, so it doesn't matter that the file has those of q and k in another order.
    expected = {
        name: gguf.dequantize(gguf.quantize(tensor, kind), kind) if tensor.ndim > 1 else tensor
        for name, tensor in tensors.items()
    }
    baked = bake(str(tmp_path / "m.gguf"), tmp_path / "baked", dtype="float32")
    tiny.assert_same(tiny.baked_tensors(baked), tiny.fused(expected, settings))


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_super_blocks_give_what_the_gguf_package_dequantizes(tmp_path: Path, kind: Type) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = 24, 2 * 256
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (rows, columns // block, block_bytes), dtype=np.uint8)
    for at in K_TYPES[kind]:
        scales = rng.standard_normal((rows, columns // block, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    raw = blocks.reshape(rows, -1)
    tiny.write_gguf(tmp_path / "m.gguf", raw={"blk.0.ffn_up.weight": (raw, kind)})
    weights = GGUFWeights(GGUFFile(tmp_path / "m.gguf"), tiny.config())
    name = "model.layers.0.mlp.up_proj.weight"
    assert weights.shape(name) == (rows, columns)
    assert weights.dtype(name) == "float32"
    expected = gguf.dequantize(raw, kind)
    np.testing.assert_array_equal(weights.read(name, 0, rows), expected)
    np.testing.assert_array_equal(weights.read(name, 5, 7), expected[5:7])


def test_every_type_that_is_named_supported_is_tested() -> None:
    assert {kind.name for kind in [*PLAIN_TYPES, *K_TYPES]} == set(TENSOR_TYPES)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    raw = np.zeros((24, 66), np.uint8)
    tiny.write_gguf(tmp_path / "m.gguf", raw={"blk.0.ffn_up.weight": (raw, Type.IQ2_XXS)})
    with pytest.raises(BakeError, match=r"blk\.0\.ffn_up\.weight has type IQ2_XXS, supported are F32, F16"):
        bake(str(tmp_path / "m.gguf"), tmp_path / "baked")


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({"*": Type.F16}, "float16"),
        ({"*": Type.BF16}, "bfloat16"),
        ({"*": Type.Q4_0}, "float32"),
        ({"*": Type.F16, "lm_head.weight": Type.Q8_0}, "float32"),
        ({}, "float32"),
    ],
)
def test_auto_dtype_is_what_all_matrices_have(tmp_path: Path, types: dict[str, Type], expected: str) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", types=types)
    assert open_gguf(tmp_path / "m.gguf").config["dtype"] == expected


def test_half_split_rows_undo_pairing() -> None:
    rows = np.arange(2 * tiny.HEAD_DIM)
    paired = tiny.pair_rows(rows, 2)
    for start, stop in [(0, len(rows)), (5, 20), (31, 32)]:
        np.testing.assert_array_equal(paired[half_split_rows(start, stop, tiny.HEAD_DIM // 2)], rows[start:stop])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
        ),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0},
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling(tmp_path: Path, keys: dict[str, Any], expected: dict[str, Any] | None) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", keys=keys)
    assert open_gguf(tmp_path / "m.gguf").config["rope_scaling"] == expected


def _llama3_table(factor: float, theta: float) -> np.ndarray[Any, Any]:
    """Transformers' llama3 rule, frequency by frequency."""
    result = []
    for index in range(0, tiny.HEAD_DIM, 2):
        wavelength = 2 * np.pi * theta ** (index / tiny.HEAD_DIM)
        if wavelength < 8192 / 4:
            result.append(1.0)
        elif wavelength > 8192 / 1:
            result.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(result, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_read_back_from_its_table(tmp_path: Path, factor: float) -> None:
    settings = tiny.config(rope_theta=500000.0)
    table = _llama3_table(factor, 500000.0)
    tiny.write_gguf(tmp_path / "m.gguf", settings, raw={"rope_freqs.weight": (table, Type.F32)})
    assert open_gguf(tmp_path / "m.gguf").config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_an_unknown_table_of_frequencies_is_refused(tmp_path: Path) -> None:
    table = np.linspace(1, 2, tiny.HEAD_DIM // 2, dtype=np.float32)
    tiny.write_gguf(tmp_path / "m.gguf", raw={"rope_freqs.weight": (table, Type.F32)})
    with pytest.raises(BakeError, match=r"rope_freqs\.weight does not hold the factors of llama3"):
        open_gguf(tmp_path / "m.gguf")


def test_a_llama_file_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    settings = tiny.config("MistralForCausalLM", sliding_window=32)
    tiny.write_gguf(tmp_path / "m.gguf", settings, keys={"llama.attention.sliding_window": 32})
    config = open_gguf(tmp_path / "m.gguf").config
    assert config["architectures"] == ["MistralForCausalLM"]
    assert config["sliding_window"] == 32
    assert config["layer_types"] == ["sliding_attention"] * tiny.LAYERS


def test_all_ids_that_end_an_answer_are_kept(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2})
    assert open_gguf(tmp_path / "m.gguf").generation_config["eos_token_id"] == [2, 7]


def test_template_and_licence_come_from_the_metadata(tmp_path: Path) -> None:
    keys = {"tokenizer.chat_template": "{{ messages }}", "general.license": "mit"}
    tiny.write_gguf(tmp_path / "m.gguf", keys=keys)
    baked = BakedModel(bake(str(tmp_path / "m.gguf"), tmp_path / "baked"))
    assert baked.chat_template == "{{ messages }}"
    assert baked.manifest["licence"] == "mit"


BAD_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"keys": {"llama.expert_count": 8}}, r"llama\.expert_count = 8 is not supported"),
    ({"keys": {"llama.attention.head_count_kv": [2, 4]}}, "differs from layer to layer"),
    ({"keys": {"llama.rope.dimension_count": 8}}, r"llama\.rope\.dimension_count other than the head size 16"),
    ({"keys": {"llama.attention.value_length": 8}}, "value_length other than the head size"),
    ({"keys": {"llama.rope.scaling.type": "longrope"}}, "rope scaling longrope is not supported"),
    ({"keys": {"split.count": 3}}, "one part of a split GGUF"),
    ({"keys": {"llama.block_count": 3}}, r"tensor model\.layers\.2\.input_layernorm\.weight is missing"),
    ({"keys": {"llama.block_count": 1}}, r"tensor blk|tensor model\.layers\.1\..* and \d+ more is not part of"),
    ({"keys": {"llama.embedding_length": 32, "llama.attention.key_length": 16}}, "has shape"),
    ({"drop": ("llama.block_count",)}, r"llama\.block_count must be a positive integer, it is None"),
    ({"drop": ("llama.attention.layer_norm_rms_epsilon",)}, "must be a positive number, it is None"),
    ({"drop": ("token_embd.weight",)}, r"token_embd\.weight is missing"),
    ({"drop": ("blk.1.attn_v.weight",)}, r"model\.layers\.1\.self_attn\.v_proj\.weight is missing"),
    ({"drop": ("tokenizer.ggml.merges",)}, r"tokenizer\.ggml\.merges is missing"),
    ({"drop": ("tokenizer.ggml.tokens",)}, r"tokenizer\.ggml\.tokens is missing"),
    ({"keys": {"tokenizer.ggml.tokens": ["a", "b"]}}, r"tokens has 2 entries, the model 260"),
    ({"keys": {"tokenizer.ggml.token_type": [1, 1]}}, r"token_type has 2 entries for 260"),
    ({"keys": {"tokenizer.ggml.pre": "no-such"}}, r"tokenizer\.ggml\.pre no-such is not supported; supported are"),
    ({"keys": {"tokenizer.ggml.model": "rwkv"}}, r"tokenizer\.ggml\.model rwkv is not supported"),
    ({"keys": {"tokenizer.ggml.merges": ["a"]}}, "which is not a pair"),
    ({"keys": {"tokenizer.ggml.merges": ["a c"]}}, "does not fit the vocabulary"),
    ({"keys": {"tokenizer.ggml.eos_token_id": 999}}, r"eos_token_id 999 is not in the vocabulary"),
    ({"keys": {"tokenizer.ggml.tokens": ["a"] * tiny.VOCAB}}, "holds the same token twice"),
]


@pytest.mark.parametrize(("change", "message"), BAD_METADATA, ids=lambda v: v if isinstance(v, str) else "")
def test_what_does_not_fit_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", **change)
    with pytest.raises(BakeError, match=message) as caught:
        bake(str(tmp_path / "m.gguf"), tmp_path / "out" / "baked")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_unsupported_architecture_is_named_with_the_supported_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        BakeError, match="architecture mamba is not supported in GGUF; supported are llama, qwen2, qwen3"
    ):
        bake(str(tmp_path / "m.gguf"), tmp_path / "baked")
