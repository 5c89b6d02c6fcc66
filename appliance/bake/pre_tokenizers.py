"""How text is cut before byte-pair merging, for each name that GGUF files use in `tokenizer.ggml.pre`.

The values are `pre_tokenizer` steps of tokenizer.json as the models' own ones have them. The name decides which ids a
text gets, so an unknown one is refused rather than guessed.
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
# Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic, Deseret, Osage, Old Hungarian, Warang Citi and Adlam.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄ"
    "ῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_HAN_TO_HANGUL = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK_LLM = [
    _split(r"[\r\n]"),
    _split(rf"\s?[{_CASED}]+"),
    _split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
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
    _split(r"[一-龥぀-ゟ゠-ヿ]+"),
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
