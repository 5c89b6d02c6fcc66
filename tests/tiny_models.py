"""Tiny random models of every supported architecture, saved by transformers and baked: the truth and the subject.

Sizes are odd on purpose (grouped heads, head_dim that is not hidden / heads, a vocabulary that is no power of two), and
weights are far larger than trained ones', so that attention is sharp and logits differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

from appliance.bake import bake

VOCAB_SIZE = 259
BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    "initializer_range": 0.3,
}


@dataclass(frozen=True)
class TinyModel:
    """A baked tiny model and the transformers model that it was made of."""

    name: str
    baked: Path
    source: Path

    def load_truth(self) -> PreTrainedModel:
        """The transformers model in float32."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.source, dtype=torch.float32, attn_implementation="eager"
        )
        return model.eval()


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}}


def _llama(**fields: Any) -> Callable[[], PreTrainedModel]:
    return lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**(BASE | fields)))


def _mistral(**fields: Any) -> Callable[[], PreTrainedModel]:
    return lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**(BASE | fields)))


def _qwen2(**fields: Any) -> Callable[[], PreTrainedModel]:
    # Qwen2's head size is hidden / heads.
    sizes = {"hidden_size": 64, "num_attention_heads": 4}
    return lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**(BASE | sizes | fields)))


def _qwen3(**fields: Any) -> Callable[[], PreTrainedModel]:
    return lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**(BASE | fields)))


TINY_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama(tie_word_embeddings=False),
    "llama-tied-biased": _llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama-multi-head": _llama(num_key_value_heads=4, tie_word_embeddings=False),
    "llama-linear": _llama(tie_word_embeddings=False, **_rope("linear", factor=4.0)),
    "llama-dynamic": _llama(tie_word_embeddings=False, **_rope("dynamic", factor=2.0)),
    "llama-llama3": _llama(
        tie_word_embeddings=False,
        **_rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "llama-yarn": _llama(tie_word_embeddings=False, **_rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama-yarn-mscale": _llama(
        tie_word_embeddings=False,
        **_rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=64,
            beta_fast=8,
            beta_slow=2,
            mscale=0.7,
            mscale_all_dim=0.4,
        ),
    ),
    "mistral": _mistral(tie_word_embeddings=False, sliding_window=None),
    "mistral-window": _mistral(tie_word_embeddings=False, sliding_window=11),
    "qwen2": _qwen2(tie_word_embeddings=True),
    "qwen2-window": _qwen2(tie_word_embeddings=False, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": _qwen3(tie_word_embeddings=False),
    "qwen3-tied-biased": _qwen3(tie_word_embeddings=True, attention_bias=True, num_key_value_heads=1),
}


def make_tiny_model(name: str, folder: Path, dtype: str = "auto") -> TinyModel:
    """Make, save and bake one of `TINY_MODELS` under `folder`; the same weights every time."""
    source, baked = folder / "source", folder / "baked"
    torch.manual_seed(sum(name.encode()))
    model = TINY_MODELS[name]()
    _randomise_vectors(model)
    model.save_pretrained(source)
    save_byte_tokenizer(source)
    bake(str(source), baked, dtype=dtype, name=f"tiny-{name}")
    return TinyModel(name, baked, source)


def save_byte_tokenizer(folder: Path) -> None:
    """A tokenizer with a token a byte and the three special ones, ids as in `BASE`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def _randomise_vectors(model: PreTrainedModel) -> None:
    """Norm weights are born as ones and biases as zeros, which would hide their absence."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
