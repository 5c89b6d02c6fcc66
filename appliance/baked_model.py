"""Read access to a baked model folder: what the API and the command line need of it. No torch, no weights.

Layout (written by `appliance.bake`, see there)::

    manifest.json            format, name, source, licence, weights (dtype, quantization), digest and size of files
    config.json              the model's configuration as Hugging Face writes it (flat text config)
    tokenizer.json           for the `tokenizers` library
    tokenizer_config.json    at least bos_token, eos_token, add_bos_token
    chat_template.jinja      absent where the model has none
    generation_config.json   sampling defaults, eos_token_id (int or list)
    model.safetensors        fused weights (names in `engine.models.loader`)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError

FORMAT_VERSION = 1


@dataclass(frozen=True)
class BakedModel:
    """A baked model folder; files are read when asked for. Raises ApplianceError where one is missing or broken."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """manifest.json."""
        return self._json("manifest.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return self._json("config.json")

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json."""
        return self._json("tokenizer_config.json")

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json ({} where the model has none)."""
        return self._json("generation_config.json") if (self.path / "generation_config.json").exists() else {}

    @cached_property
    def chat_template(self) -> str | None:
        """The model's chat template."""
        file = self.path / "chat_template.jinja"
        return file.read_text(encoding="utf-8") if file.exists() else None

    @property
    def name(self) -> str:
        """The model's name, served unless --served-model-name says otherwise."""
        return str(self.manifest.get("name") or self.path.name)

    @property
    def tokenizer_path(self) -> Path:
        """tokenizer.json."""
        return self.path / "tokenizer.json"

    @property
    def max_position_embeddings(self) -> int:
        """The model's own context in tokens."""
        return int(self.config.get("max_position_embeddings", 2048))

    @property
    def eos_token_ids(self) -> list[int]:
        """Ids that end an answer."""
        value = self.generation_config.get("eos_token_id", self.config.get("eos_token_id"))
        return list(value) if isinstance(value, list) else [] if value is None else [int(value)]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ApplianceError(f"{self.path} is not a baked model: {name} is missing") from None
        except (OSError, ValueError) as error:
            raise ApplianceError(f"{self.path / name} cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise ApplianceError(f"{self.path / name} does not hold a JSON object")
        return value
