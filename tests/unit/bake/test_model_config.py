"""config.json in one spelling, whatever the source's one."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.bake.model_config import normalise_config
from tests.unit.bake import tiny_sources as tiny

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": LLAMA3}, 10000.0, LLAMA3),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, 7e4, None),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 7e4}}, 7e4, LLAMA3),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            10000.0,
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 128},
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
            10000.0,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        (
            {"rope_scaling": {"rope_type": "yarn"}, "original_max_position_embeddings": 32},
            10000.0,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rope(fields: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    config = normalise_config(tiny.config(**fields))
    assert config["rope_theta"] == theta
    assert config["rope_scaling"] == scaling
    assert "rope_parameters" not in config


@pytest.mark.parametrize(
    ("architecture", "fields", "window", "kinds"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, None, None),
        ("MistralForCausalLM", {}, 4096, "ss"),
        ("MistralForCausalLM", {"sliding_window": None}, None, None),
        ("MistralForCausalLM", {"sliding_window": 8}, 8, "ss"),
        ("Qwen2ForCausalLM", {"sliding_window": 8}, None, None),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, 8, "fs"),
        ("Qwen3ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, 8, "ff"),
        (
            "Qwen3ForCausalLM",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            8,
            "sf",
        ),
    ],
)
def test_the_sliding_window_is_there_only_where_it_is_used(
    architecture: str, fields: dict[str, Any], window: int | None, kinds: str | None
) -> None:
    config = normalise_config(tiny.config(architecture, **fields))
    names = {"s": "sliding_attention", "f": "full_attention"}
    assert config["sliding_window"] == window
    assert config.get("layer_types") == (None if kinds is None else [names[kind] for kind in kinds])


@pytest.mark.parametrize(
    ("architecture", "fields", "attention_bias", "mlp_bias"),
    [
        ("LlamaForCausalLM", {}, False, False),
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, True, True),
        ("MistralForCausalLM", {"attention_bias": True}, False, False),
        ("Qwen2ForCausalLM", {}, True, False),
        ("Qwen3ForCausalLM", {"attention_bias": True}, True, False),
    ],
)
def test_biases(architecture: str, fields: dict[str, Any], attention_bias: bool, mlp_bias: bool) -> None:
    config = normalise_config(tiny.config(architecture, **fields))
    assert (config["attention_bias"], config["mlp_bias"]) == (attention_bias, mlp_bias)


def test_what_follows_from_other_fields_is_written_out() -> None:
    raw = tiny.config()
    for key in ("head_dim", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "model_type"):
        del raw[key]
    config = normalise_config(raw)
    assert config["head_dim"] == tiny.HIDDEN // tiny.HEADS
    assert config["num_key_value_heads"] == tiny.HEADS
    assert config["rms_norm_eps"] == 1e-6
    assert config["max_position_embeddings"] == 2048
    assert config["model_type"] == "llama"


def test_qwen3_heads_do_not_follow_from_the_hidden_size() -> None:
    raw = tiny.config("Qwen3ForCausalLM")
    del raw["head_dim"]
    assert normalise_config(raw)["head_dim"] == 128


def test_traces_of_the_machine_that_saved_it_are_dropped() -> None:
    config = normalise_config(tiny.config(_name_or_path="/home/me/model", torch_dtype="float32"))
    assert not {"_name_or_path", "torch_dtype"} & config.keys()
