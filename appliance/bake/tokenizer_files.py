"""The text side of a baked folder: tokenizer.json checked against the model, tokenizer_config completed.

The chat template gets a file of its own; whether BOS and EOS are added is the same in both tokenizer files.
"""

from __future__ import annotations

import json
from typing import Any

from appliance.errors import BakeError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def check_tokenizer(tokenizer_json: str, vocab_size: int) -> Any:
    """Load tokenizer.json (a `tokenizers.Tokenizer`); every id must be one of the model's."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise BakeError(f"tokenizer.json is damaged: {_first_line(error)}") from None
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest < 0:
        raise BakeError("tokenizer.json is damaged: it has no vocabulary")
    if highest >= vocab_size:
        raise BakeError(f"tokenizer.json has token id {highest}, but vocab_size is {vocab_size}: not of this model")
    return tokenizer


def complete_tokenizer(
    tokenizer_json: str, tokenizer_config: dict[str, Any], config: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Make tokenizer.json and tokenizer_config.json agree on named tokens and on what is added to a text."""
    tokenizer = check_tokenizer(tokenizer_json, int(config["vocab_size"]))
    named = _named_tokens(tokenizer_config, config, tokenizer)
    adds_bos, adds_eos = _added_ends(tokenizer, named)
    explicit = {"add_bos_token", "add_eos_token"} & tokenizer_config.keys()
    if explicit:
        # As transformers: naming one of the two fields in the config overrides tokenizer.json's post-processor.
        wanted_bos = bool(tokenizer_config.get("add_bos_token")) and named["bos_token"] is not None
        wanted_eos = bool(tokenizer_config.get("add_eos_token")) and named["eos_token"] is not None
        if (wanted_bos, wanted_eos) != (adds_bos, adds_eos):
            adds_bos, adds_eos = wanted_bos, wanted_eos
            tokenizer_json = _with_post_processor(tokenizer_json, tokenizer, named, adds_bos, adds_eos)
    kept = {key: value for key, value in tokenizer_config.items() if key != "chat_template"}
    return tokenizer_json, kept | named | {"add_bos_token": adds_bos, "add_eos_token": adds_eos}


def ends_template(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> dict[str, Any]:
    """A tokenizer.json post-processor that puts BOS before and EOS behind each text."""

    def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": type_id}}]
        if bos is not None:
            parts.insert(0, {"SpecialToken": {"id": bos[0], "type_id": type_id}})
        if eos is not None:
            parts.append({"SpecialToken": {"id": eos[0], "type_id": type_id}})
        return parts

    tokens = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in filter(None, (bos, eos))}
    pair = sequence("A", 0) + sequence("B", 1)
    return {"type": "TemplateProcessing", "single": sequence("A", 0), "pair": pair, "special_tokens": tokens}


def pick_chat_template(value: Any) -> str | None:
    """The chat template of a tokenizer_config: a string, or the one named default of a list (or mapping)."""
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) and value else None


def _named_tokens(tokenizer_config: dict[str, Any], config: dict[str, Any], tokenizer: Any) -> dict[str, str | None]:
    return {name: _named_token(name, tokenizer_config, config, tokenizer) for name in _NAMED_TOKENS}


def _named_token(name: str, tokenizer_config: dict[str, Any], config: dict[str, Any], tokenizer: Any) -> str | None:
    value = tokenizer_config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None and name not in tokenizer_config:
        number = config.get(f"{name}_id")
        number = number[0] if isinstance(number, list) and number else number
        value = tokenizer.id_to_token(number) if isinstance(number, int) and number >= 0 else None
    if value is not None and tokenizer.token_to_id(value) is None:
        raise BakeError(f"tokenizer_config.json: {name} {value!r} is not in tokenizer.json")
    return value


def _added_ends(tokenizer: Any, named: dict[str, str | None]) -> tuple[bool, bool]:
    ids = tokenizer.encode("", add_special_tokens=True).ids
    bos, eos = (tokenizer.token_to_id(named[key]) if named[key] else None for key in ("bos_token", "eos_token"))
    adds_bos = bos is not None and ids[:1] == [bos]
    adds_eos = eos is not None and ids[int(adds_bos) :][-1:] == [eos]
    return adds_bos, adds_eos


def _with_post_processor(
    tokenizer_json: str, tokenizer: Any, named: dict[str, str | None], adds_bos: bool, adds_eos: bool
) -> str:
    bos, eos = (
        (token, int(tokenizer.token_to_id(token))) if wanted and (token := named[key]) else None
        for key, wanted in (("bos_token", adds_bos), ("eos_token", adds_eos))
    )
    document = json.loads(tokenizer_json)
    document["post_processor"] = ends_template(bos, eos)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
