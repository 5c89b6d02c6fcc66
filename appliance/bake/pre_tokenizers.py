"""How text is cut before byte-pair merging, for each name that GGUF files use in `tokenizer.ggml.pre`.

The values are `pre_tokenizer` steps of tokenizer.json as the models' own ones have them. The name decides which ids a
text gets, so an unknown one is refused rather than guessed. Where the model's own tokenizer normalises its text (Qwen2:
NFC) ours does, too, though llama.cpp does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.errors import BakeError


class PreTokenizer(NamedTuple):
    """`steps` cut; `ignore_merges`: a piece that is a token stays whole; `adds_bos` unless the file says otherwise."""

    steps: list[dict[str, Any]]
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: dict[str, str] | None = None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_BYTES = _byte_level(use_regex=False)
_GPT2 = _byte_level(use_regex=True)
_DIGITS = {"type": "Digits", "individual_digits": True}
_NFC = {"type": "NFC"}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _split(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}")
_QWEN2 = _split(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = _split(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
# Cased letters as DeepSeek's tokenizer lists them. By code point: typed out, editors would normalise some away.
_CASED_RANGES = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 "
    "1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 "
    "2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943 "
)


def _character_class(ranges: str) -> str:
    pairs = [word.partition("-") for word in ranges.split()]
    return "".join(chr(int(first, 16)) + (dash and dash + chr(int(last, 16))) for first, dash, last in pairs)


_CASED = _character_class(_CASED_RANGES)
_HAN_TO_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_WIDE_PUNCTUATION = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_DEEPSEEK_LLM = [
    _split(r"[\r\n]"),
    _split(rf"\s?[{_CASED}]+"),
    _split(rf"\s?[{_WIDE_PUNCTUATION}]+"),
    _split(r"\s+$"),
    _split(_HAN_TO_HANGUL),
    _split(r"\p{N}+"),
    _BYTES,
]
_DEEPSEEK_CODER = [
    _split(r"[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _split(_HAN_TO_HANGUL),
    _split(r"\p{N}"),
    _BYTES,
]
_DEEPSEEK_V3 = [
    _split(r"\p{N}{1,3}"),
    _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    _split(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
    ),
    _BYTES,
]
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# What files without a name, from before there were names, are read as.
_DEFAULT = [
    _split(r"[\p{P}\$\+<=>\^~\|]+"),
    _split(_GPT2_PATTERN),
    _split(r"\p{N}+"),
    _split(r"[0-9][0-9][0-9]"),
    _BYTES,
]

_FAMILIES: list[tuple[PreTokenizer, tuple[str, ...]]] = [
    (PreTokenizer(_DEFAULT), ("default",)),
    (PreTokenizer([_GPT2]), ("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "mellum", "gigachat", "a.x-4.0")),
    (PreTokenizer([_DIGITS, _GPT2]), ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b")),
    (
        PreTokenizer([_LLAMA3, _BYTES], ignore_merges=True, adds_bos=True),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"),
    ),
    (PreTokenizer([_LLAMA3, _BYTES]), ("dbrx", "smaug-bpe")),
    (PreTokenizer([_QWEN2, _BYTES], normalizer=_NFC), ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "kormo")),
    (PreTokenizer(_DEEPSEEK_LLM), ("deepseek-llm",)),
    (PreTokenizer(_DEEPSEEK_CODER), ("deepseek-coder",)),
    (PreTokenizer(_DEEPSEEK_V3), ("deepseek-v3",)),
    (PreTokenizer([_TEKKEN, _BYTES], ignore_merges=True, adds_bos=True), ("tekken",)),
]
PRE_TOKENIZERS = {name: pre_tokenizer for pre_tokenizer, names in _FAMILIES for name in names}


def get_pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer of that name (none means "default"). Raises BakeError listing the known ones."""
    found = PRE_TOKENIZERS.get(name or "default")
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise BakeError(f"tokenizer.ggml.pre {name} is not supported; supported are {known}")
    return found
