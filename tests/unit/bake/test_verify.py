"""`verify` finds every kind of difference between a folder and its manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.bake import bake, verify
from appliance.errors import BakeError
from tests.unit.bake import tiny_sources as tiny


@pytest.fixture
def baked(tmp_path: Path) -> Path:
    tiny.write_folder(tmp_path / "model")
    return bake(str(tmp_path / "model"), tmp_path / "baked")


def test_a_whole_folder_has_no_problems_and_progress_ends_at_one(baked: Path) -> None:
    seen: list[float] = []
    assert verify(baked, lambda phase, done: seen.append(done)) == []
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("position", [0, 1000, -1])
def test_one_flipped_bit_is_found(baked: Path, position: int) -> None:
    file = baked / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)
    assert verify(baked) == ["model.safetensors differs from its digest in the manifest"]


def test_every_problem_is_reported(baked: Path) -> None:
    (baked / "config.json").unlink()
    (baked / "extra.txt").write_text("x")
    with (baked / "tokenizer.json").open("ab") as file:
        file.write(b" ")
    size = (baked / "tokenizer.json").stat().st_size
    assert verify(baked) == [
        "config.json is missing",
        "extra.txt is not in the manifest",
        f"tokenizer.json has {size} bytes, the manifest says {size - 1}",
    ]


def test_a_folder_in_place_of_a_file_is_a_problem(baked: Path) -> None:
    (baked / "config.json").unlink()
    (baked / "config.json").mkdir()
    (problem,) = verify(baked)
    assert problem.startswith("config.json")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, r"manifest\.json is missing"),
        ("{", r"manifest\.json cannot be read"),
        (json.dumps({"format": 99, "files": {}}), "format 99 is not 1"),
        (json.dumps({"format": 1}), "files must map names"),
        (json.dumps({"format": 1, "files": {"a": {"sha256": 1}}}), "files must map names"),
    ],
)
def test_without_a_manifest_there_is_nothing_to_check(baked: Path, manifest: str | None, message: str) -> None:
    (baked / "manifest.json").unlink()
    if manifest is not None:
        (baked / "manifest.json").write_text(manifest)
    with pytest.raises(BakeError, match=message):
        verify(baked)
