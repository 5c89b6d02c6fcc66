"""A baked folder that is whole as far as one can see without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.box.proxy import short_dir

CONFIG = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256, "vocab_size": 259}
FILES = {
    "config.json": json.dumps(CONFIG),
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "generation_config.json": "{}",
    "model.safetensors": "x" * 1000,
}


def bake_fake(folder: Path, name: str = "fake") -> Path:
    """Write a folder with a manifest that agrees with its files."""
    folder.mkdir(parents=True)
    for file, text in FILES.items():
        (folder / file).write_text(text)
    sizes = {file: {"sha256": "0" * 64, "bytes": len(text)} for file, text in FILES.items()}
    manifest = {"format": 1, "name": name, "weights": {"dtype": "bfloat16"}, "files": sizes}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def fake_model(tmp_path: Path) -> Path:
    return bake_fake(tmp_path / "models" / "fake")


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: bake_fake(tmp_path / "models" / name, name)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with short_dir() as path:
        yield path


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("BREADBOX_"):
            monkeypatch.delenv(name)
