"""Small tokenizers of both kinds, built here: byte-level BPE, and SentencePiece-like BPE with byte fallback."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from appliance.text.tokenizer import Tokenizer

CORPUS = [
    "Hello world, the quick brown fox jumps over the lazy dog. <|im_end|> user system end im",
    "red red red red blue <tool_call> 12345 你好 😀 été naïve   code():\n\treturn x",
] * 5


def make_byte_level(**config: object) -> Tokenizer:
    """Like SmolLM2's or Qwen's: special tokens first in the vocabulary, a tool tag that is added but not special."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    tags = ("<tool_call>", "</tool_call>", "</think>")
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in tags] + [AddedToken("    ", normalized=False)])
    return Tokenizer(
        backend, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": False} | config
    )


def make_sentencepiece(**config: object) -> Tokenizer:
    """Like Llama 2's: ▁ for blanks, one put in front of the text, bytes for characters outside the vocabulary."""
    words = [
        "▁",
        "▁H",
        "He",
        "el",
        "lo",
        "▁He",
        "▁Hel",
        "▁Hello",
        "▁w",
        "or",
        "▁wor",
        "ld",
        "▁world",
        "re",
        "▁re",
        "▁red",
    ]
    merges = [
        ("▁", "H"), ("▁H", "e"), ("▁He", "l"), ("l", "o"), ("▁Hel", "lo"), ("▁", "w"), ("o", "r"), ("▁w", "or"),
        ("l", "d"), ("▁wor", "ld"), ("r", "e"), ("▁", "re"), ("▁re", "d"),
    ]  # fmt: skip
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    pieces += [c for c in map(chr, range(0x20, 0x7F)) if c != " "] + ["é", "你"]
    vocab = {piece: id for id, piece in enumerate(dict.fromkeys(pieces))}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True} | config)


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return make_byte_level()


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return make_sentencepiece()


@pytest.fixture(scope="session", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found
