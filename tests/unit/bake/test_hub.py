"""Hugging Face repositories, from a hub on loopback. In processes of their own: the client reads its settings once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.bake import bake, verify
from appliance.baked_model import BakedModel
from tests.unit.bake import tiny_sources as tiny
from tests.unit.bake.fake_hub import COMMIT, FakeHub, fake_hub

_PROGRAM = """
import sys
from pathlib import Path
from appliance.bake import bake
from appliance.errors import BakeError
try:
    bake(sys.argv[1], Path(sys.argv[2]), revision=sys.argv[3] or None, progress=lambda p, d: print(p, d))
except BakeError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    folder = tmp_path / "repository"
    tiny.write_folder(folder, shards=2)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "pytorch_model.bin").write_bytes(b"never")
    (folder / "consolidated.safetensors").write_bytes(b"never")
    with fake_hub(folder) as running:
        yield running


def _bake(tmp_path: Path, repository: str, revision: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Bake in a process that sees only this hub, this cache and no one's token."""
    hidden = ("HF_", "HUGGING_FACE", "HTTP", "http", "ALL_PROXY", "all_proxy")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    clean |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", _PROGRAM, repository, str(tmp_path / "out" / "baked"), revision]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, check=False, timeout=120)


def _assert_one_line(done: subprocess.CompletedProcess[str], tmp_path: Path, message: str) -> None:
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_a_repository_is_pinned_and_only_what_is_needed_is_fetched(tmp_path: Path, hub: FakeHub) -> None:
    done = _bake(tmp_path, "owner/tiny", HF_ENDPOINT=hub.url, HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    baked = BakedModel(tmp_path / "out" / "baked")
    assert verify(baked.path) == []
    assert baked.name == "tiny"
    assert baked.manifest["licence"] == "mit"
    assert baked.manifest["source"] == {"kind": "hub", "id": "owner/tiny", "revision": COMMIT, "sha256": None}
    assert not {"pytorch_model.bin", "consolidated.safetensors"} & set(hub.fetched)
    assert hub.tokens == {"Bearer hf_secret"}
    assert "download 1.0" in done.stdout.splitlines()
    folder = BakedModel(bake(str(hub.folder), tmp_path / "folder"))
    assert folder.manifest["files"] == baked.manifest["files"]


def test_a_cached_commit_bakes_without_the_hub(tmp_path: Path, hub: FakeHub) -> None:
    assert _bake(tmp_path, "owner/tiny", COMMIT, HF_ENDPOINT=hub.url).returncode == 0
    (tmp_path / "out").rename(tmp_path / "first")
    done = _bake(tmp_path, "owner/tiny", COMMIT, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr


def test_offline_is_one_clear_line(tmp_path: Path) -> None:
    done = _bake(tmp_path, "owner/tiny", HF_HUB_OFFLINE="1")
    _assert_one_line(done, tmp_path, "owner/tiny cannot be downloaded: HF_HUB_OFFLINE is set")
    done = _bake(tmp_path, "owner/tiny", COMMIT, HF_HUB_OFFLINE="1")
    _assert_one_line(done, tmp_path, f"owner/tiny at revision {COMMIT} cannot be downloaded")


def test_an_unreachable_hub_is_one_clear_line(tmp_path: Path) -> None:
    done = _bake(tmp_path, "owner/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    _assert_one_line(done, tmp_path, "owner/tiny cannot be downloaded")


@pytest.mark.parametrize(
    ("repository", "revision", "message"),
    [
        ("owner/no-such", "", "owner/no-such does not exist on the hub, or is private"),
        ("owner/gated", "", "owner/gated is gated: accept its terms"),
        ("owner/tiny", "no-such", "owner/tiny has no revision no-such"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_line(
    tmp_path: Path, hub: FakeHub, repository: str, revision: str, message: str
) -> None:
    _assert_one_line(_bake(tmp_path, repository, revision, HF_ENDPOINT=hub.url), tmp_path, message)


def test_an_unsupported_quantization_is_refused_before_the_weights_are_downloaded(tmp_path: Path, hub: FakeHub) -> None:
    config = tiny.config(quantization_config={"quant_method": "hqq"})
    (hub.folder / "config.json").write_text(json.dumps(config))
    done = _bake(tmp_path, "owner/tiny", HF_ENDPOINT=hub.url)
    _assert_one_line(done, tmp_path, "quantization hqq is not supported; supported are awq")
    assert hub.fetched == ["config.json"]


def test_a_repository_without_safetensors_is_refused_before_the_download(tmp_path: Path, hub: FakeHub) -> None:
    for file in hub.folder.glob("*safetensors*"):
        file.unlink()
    done = _bake(tmp_path, "owner/tiny", HF_ENDPOINT=hub.url)
    _assert_one_line(done, tmp_path, "owner/tiny holds no safetensors weights, only .bin files")
    assert hub.fetched == []
