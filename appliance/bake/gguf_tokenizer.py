"""GGUF's tokenizer arrays → tokenizer.json: byte-level BPE ("gpt2") and SentencePiece BPE with scores ("llama")."""

from __future__ import annotations

import json
from typing import Any

from appliance.bake.gguf_file import GGUFFile
from appliance.bake.pre_tokenizers import get_pre_tokenizer
from appliance.bake.tokenizer_files import ends_template
from appliance.errors import BakeError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "▁"  # SentencePiece's visible space


def make_tokenizer(file: GGUFFile, vocab_size: int) -> str:
    """tokenizer.json. Raises BakeError naming the key."""
    tokens = _array(file, "tokens", str)
    if len(tokens) != vocab_size:
        raise BakeError(f"{file.path.name}: tokenizer.ggml.tokens has {len(tokens)} entries, the model {vocab_size}")
    vocab = {token or f"[EMPTY_{number}]": number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise BakeError(f"{file.path.name}: tokenizer.ggml.tokens holds the same token twice")
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        parts = _byte_level_parts(file, vocab)
    elif kind == "llama":
        parts = _sentencepiece_parts(file, vocab)
    else:
        raise BakeError(f"{file.path.name}: tokenizer.ggml.model {kind} is not supported; supported are gpt2 and llama")
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(file, vocab),
        "post_processor": _post_processor(file, list(vocab)),
    }
    return json.dumps(document | parts, ensure_ascii=False, separators=(",", ":"))


def make_tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """tokenizer_config.json; call after `make_tokenizer` has checked the arrays."""
    tokens = file.metadata["tokenizer.ggml.tokens"]
    adds_bos, adds_eos = _adds_ends(file)
    named = {
        f"{short}_token": None if (number := _special_id(file, key)) is None else tokens[number]
        for short, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    return named | {
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }


def _byte_level_parts(file: GGUFFile, vocab: dict[str, int]) -> dict[str, Any]:
    pre_tokenizer = get_pre_tokenizer(file.metadata.get("tokenizer.ggml.pre"))
    merges = [_merge(file, line) for line in _array(file, "merges", str)]
    for left, right in merges:
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise BakeError(f"{file.path.name}: the merge {left!r} {right!r} does not fit the vocabulary")
    return {
        "normalizer": pre_tokenizer.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizer.steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe_model(vocab, merges, ignore_merges=pre_tokenizer.ignore_merges),
    }


def _merge(file: GGUFFile, line: str) -> tuple[str, str]:
    cut = line.find(" ", 1)
    if cut < 1 or cut == len(line) - 1:
        raise BakeError(f"{file.path.name}: tokenizer.ggml.merges holds {line!r}, which is not a pair")
    return line[:cut], line[cut + 1 :]


def _sentencepiece_parts(file: GGUFFile, vocab: dict[str, int]) -> dict[str, Any]:
    adds_space = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = _special_id(file, "unknown")
    tokens = list(vocab)
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if adds_space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if adds_space else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    visible = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [visible, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _bpe_model(
            vocab,
            _merges_by_score(file, vocab),
            unk_token=tokens[unknown] if unknown is not None else None,
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _merges_by_score(file: GGUFFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece merges whichever neighbours form the piece of the highest score: the pairs, best piece first."""
    scores, types = _array(file, "scores", float | int), _token_types(file, len(vocab))
    if len(scores) != len(vocab):
        raise BakeError(f"{file.path.name}: tokenizer.ggml.scores has {len(scores)} entries for {len(vocab)} tokens")
    ranked = []
    for piece, number in vocab.items():
        if types[number] not in (_NORMAL, _USER_DEFINED):
            continue
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[number], left, right, piece[:cut], piece[cut:]))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _bpe_model(vocab: dict[str, int], merges: list[tuple[str, str]], **fields: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **fields,
        "vocab": vocab,
        "merges": merges,
    }


def _added_tokens(file: GGUFFile, vocab: dict[str, int]) -> list[dict[str, Any]]:
    """Tokens that are found in the text as they stand: control ones (special) and those that users defined.

    Tokens that begin or end a text are control ones, even where an old file's types don't say so.
    """
    types = _token_types(file, len(vocab))
    ends = {_special_id(file, name) for name in ("bos", "eos", "eot", "eom")}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": token, **flags, "special": types[number] != _USER_DEFINED or number in ends}
        for token, number in vocab.items()
        if types[number] in (_UNKNOWN, _CONTROL, _USER_DEFINED) or number in ends
    ]


def _post_processor(file: GGUFFile, tokens: list[str]) -> dict[str, Any] | None:
    adds_bos, adds_eos = _adds_ends(file)
    bos, eos = (_special_id(file, name) if adds else None for name, adds in (("bos", adds_bos), ("eos", adds_eos)))
    if (adds_bos and bos is None) or (adds_eos and eos is None):
        raise BakeError(f"{file.path.name}: a token is to be added to each text, but its id is not named")
    if bos is None and eos is None:
        return None
    return ends_template(*((tokens[number], number) if number is not None else None for number in (bos, eos)))


def _adds_ends(file: GGUFFile) -> tuple[bool, bool]:
    by_default = file.metadata.get("tokenizer.ggml.model") == "llama"
    if not by_default:
        by_default = get_pre_tokenizer(file.metadata.get("tokenizer.ggml.pre")).adds_bos
    adds_bos = file.metadata.get("tokenizer.ggml.add_bos_token", by_default)
    return bool(adds_bos), bool(file.metadata.get("tokenizer.ggml.add_eos_token", False))


def _special_id(file: GGUFFile, name: str) -> int | None:
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if file.metadata.get("tokenizer.ggml.model") == "llama" else {}
    value = file.metadata.get(f"tokenizer.ggml.{name}_token_id", defaults.get(name))
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(file.metadata["tokenizer.ggml.tokens"]):
        raise BakeError(f"{file.path.name}: tokenizer.ggml.{name}_token_id {value!r} is not in the vocabulary")
    return value


def _token_types(file: GGUFFile, count: int) -> list[int]:
    types = file.metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [_NORMAL] * count
    types = _array(file, "token_type", int)
    if len(types) != count:
        raise BakeError(f"{file.path.name}: tokenizer.ggml.token_type has {len(types)} entries for {count} tokens")
    return types


def _array(file: GGUFFile, key: str, kind: Any) -> list[Any]:
    values = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise BakeError(f"{file.path.name}: tokenizer.ggml.{key} is missing or of another type")
    return values
