"""A Hugging Face model folder (config.json, tokenizer.json, safetensors) as a `Source`. Pickled weights are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from appliance.bake.checkpoints.schemes import Scheme, read_scheme
from appliance.bake.checkpoints.weights import QuantizedWeights
from appliance.bake.fuse import is_tied
from appliance.bake.manifest import digest_files
from appliance.bake.model_config import normalise_config
from appliance.bake.safetensors_file import SafetensorsWeights
from appliance.bake.source import Provenance, Source
from appliance.bake.tokenizer_files import complete_tokenizer, pick_chat_template
from appliance.errors import BakeError

_INDEX = "model.safetensors.index.json"
_LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


def open_folder(folder: Path, *, name: str | None = None, provenance: Provenance | None = None) -> Source:
    """Read everything but the weights' bytes. Raises BakeError in one line that names the file."""
    raw, scheme = read_config(folder)
    config = normalise_config(raw)
    files = weight_files(folder)
    plain = SafetensorsWeights(files)
    weights = plain if scheme is None else QuantizedWeights(plain, scheme)
    config["tie_word_embeddings"] = is_tied(raw, weights)
    config["dtype"] = weights.main_dtype()
    tokenizer_json = _read_text(folder / "tokenizer.json", _no_tokenizer(folder))
    tokenizer_config = _tokenizer_config(folder)
    tokenizer_json, completed = complete_tokenizer(tokenizer_json, tokenizer_config, config)
    return Source(
        name=name or folder.resolve().name,
        provenance=provenance or Provenance("folder", folder.resolve().name, sha256=_digest(folder, files)),
        config=config,
        weights=weights,
        tokenizer_json=tokenizer_json,
        tokenizer_config=completed,
        chat_template=_chat_template(folder, tokenizer_config),
        generation_config=_generation_config(folder, config),
        licence=_licence(folder),
        licence_text=_licence_text(folder),
    )


def read_config(folder: Path) -> tuple[dict[str, Any], Scheme | None]:
    """config.json, and how the weights are quantized. Raises BakeError for a quantization that is not supported."""
    raw = read_json(folder / "config.json")
    return raw, read_scheme(raw)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises BakeError naming the file."""
    text = _read_text(path, f"{path.parent} is not a model folder: {path.name} is missing")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BakeError(f"{path.name} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise BakeError(f"{path.name} is damaged: it does not hold a JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files to read: those of the index, or the single one."""
    if (folder / _INDEX).exists():
        return _indexed_files(folder)
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise BakeError(f"{folder} holds only pickled weights (.bin), which run code when read; bake safetensors")
    if any(folder.glob("*.gguf")):
        raise BakeError(f"{folder} holds GGUF files; name one of them as the source")
    raise BakeError(f"{folder} holds no weights: model.safetensors and {_INDEX} are missing")


def _indexed_files(folder: Path) -> list[Path]:
    mapping = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(v, str) for v in mapping.values()):
        raise BakeError(f"{_INDEX} is damaged: weight_map does not name files")
    files = [folder / name for name in sorted(set(mapping.values()))]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise BakeError(f"{_INDEX} names {file.name}, which is missing from {folder}")
    return files


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over the older special_tokens_map.json, either may be absent."""
    merged: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).exists():
            merged |= read_json(folder / file)
    return merged


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """chat_template.jinja beats chat_template.json beats tokenizer_config.json, as in transformers."""
    if (folder / "chat_template.jinja").exists():
        return _read_text(folder / "chat_template.jinja", "")
    if (folder / "chat_template.json").exists():
        return pick_chat_template(read_json(folder / "chat_template.json").get("chat_template"))
    return pick_chat_template(tokenizer_config.get("chat_template"))


def _generation_config(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    file = folder / "generation_config.json"
    found = read_json(file) if file.exists() else {}
    from_config = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
    dropped = ("_from_model_config", "transformers_version")
    return from_config | {key: value for key, value in found.items() if key not in dropped and value is not None}


def _licence(folder: Path) -> str | None:
    """The licence that the model card's front matter names."""
    card = folder / "README.md"
    if not card.exists():
        return None
    front = re.match(r"\A---\s*\n(.*?)\n---", card.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    line = re.search(r"^license:\s*[\"']?([\w.+-]+)", front.group(1), re.MULTILINE) if front else None
    return line.group(1) if line else None


def _licence_text(folder: Path) -> bytes | None:
    return next((file.read_bytes() for name in _LICENCE_FILES if (file := folder / name).is_file()), None)


def _digest(folder: Path, weights: list[Path]) -> str:
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    return digest_files([*weights, *(folder / name for name in names if (folder / name).exists())])


def _no_tokenizer(folder: Path) -> str:
    if (folder / "tokenizer.model").exists():
        return f"tokenizer.json is missing from {folder} (a tokenizer.model alone is not supported)"
    return f"tokenizer.json is missing from {folder}"


def _read_text(path: Path, missing: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise BakeError(missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BakeError(f"{path.name} cannot be read: {error}") from None
