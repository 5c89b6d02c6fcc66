"""What can be seen to be wrong without starting a box."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from appliance import preflight
from appliance.preflight import find_problems
from appliance.settings import Settings
from tests.box.proxy import free_port


def problems(model: Path, **knobs: object) -> list[str]:
    return find_problems(Settings(model=(model,), host="127.0.0.1", port=free_port(), **knobs))  # type: ignore[arg-type]


def test_a_sound_model(fake_model: Path) -> None:
    assert problems(fake_model) == []


def test_a_folder_that_is_missing_or_not_baked(tmp_path: Path) -> None:
    assert problems(tmp_path / "none") == [f"--model: there is no folder {tmp_path / 'none'}"]
    assert "is not a baked model: config.json is missing" in problems(tmp_path)[0]


def test_files_that_are_missing_or_cut_off(fake_model: Path) -> None:
    (fake_model / "tokenizer.json").unlink()
    (fake_model / "model.safetensors").write_text("short")
    found = problems(fake_model)
    assert any("model.safetensors has 5 bytes, its manifest says 1000" in problem for problem in found)
    assert any("tokenizer.json is missing" in problem for problem in found)


def test_an_architecture_that_is_not_supported(fake_model: Path) -> None:
    (fake_model / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    (found, *_) = problems(fake_model)
    assert "MambaForCausalLM is not supported" in found
    assert "LlamaForCausalLM" in found


def test_async_scheduling_with_what_it_cannot_be_combined_with(fake_model: Path) -> None:
    draft = {"method": "ngram", "num_speculative_tokens": 3}
    found = problems(fake_model, async_scheduling=True, speculative_config=draft)
    assert len(found) == 1
    assert found[0].startswith("async_scheduling cannot be combined with speculation")
    assert problems(fake_model, async_scheduling=True) == problems(fake_model, speculative_config=draft) == []


def test_names_that_do_not_fit(fake_model: Path) -> None:
    settings = Settings(model=(fake_model, fake_model), host="127.0.0.1", port=free_port())
    assert find_problems(settings) == ["--served-model-name: the name fake is used twice: give each model its own"]


def test_memory(fake_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 1999)
    (problem,) = problems(fake_model)  # 1000 bytes of bfloat16 become 2000 of float32
    assert problem == "memory: weights 2000 bytes do not fit into the 1999 bytes that are available"
    assert problems(fake_model, dtype="bfloat16") == []
    assert "and KV cache 1000 bytes" in problems(fake_model, dtype="bfloat16", kv_cache_memory=1000)[0]


@pytest.mark.parametrize(("quantization", "expected"), [("int4", 1000), ("fp8", 2000)])
def test_memory_of_packed_weights(
    fake_model: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, expected: int
) -> None:
    manifest = json.loads((fake_model / "manifest.json").read_text())
    manifest["weights"]["quantization"] = quantization
    (fake_model / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 999)
    assert problems(fake_model) == [
        f"memory: weights {expected} bytes do not fit into the 999 bytes that are available"
    ]


def test_chat_templates(fake_model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_text("{% if %}")
    assert problems(fake_model, chat_template="{{ messages }}") == []
    assert "none.jinja cannot be read" in problems(fake_model, chat_template="none.jinja")[0]
    assert len(problems(fake_model, chat_template=str(tmp_path / "broken.jinja"))) == 1


def test_generation_config(fake_model: Path) -> None:
    assert problems(fake_model, generation_config=str(fake_model)) == []
    assert "--generation-config: nowhere" in problems(fake_model, generation_config="nowhere")[0]


def test_a_port_in_use(fake_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(model=(fake_model,), host="127.0.0.1", port=taken.getsockname()[1])
        (problem,) = find_problems(settings)
    assert problem.startswith("--port: cannot listen on 127.0.0.1")


def test_a_host_that_is_not_ours(fake_model: Path) -> None:
    assert "--port: cannot listen on 192.0.2.1" in find_problems(Settings(model=(fake_model,), host="192.0.2.1"))[0]


def test_unix_sockets(fake_model: Path, folder: Path) -> None:
    path = folder / "box.sock"
    assert problems(fake_model, uds=path) == []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert problems(fake_model, uds=path) == []  # left behind: nobody answers
        server.listen()
        assert "another server is listening" in problems(fake_model, uds=path)[0]
    path.unlink()
    path.write_text("a file")
    assert "is not a socket" in problems(fake_model, uds=path)[0]
    assert "there is no folder" in problems(fake_model, uds=folder / "none" / "box.sock")[0]
    assert "longer than the 107 bytes" in problems(fake_model, uds=folder / ("x" * 100))[0]


def test_a_run_dir_that_cannot_be(fake_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in problems(fake_model, run_dir=tmp_path / "file" / "run")[0]
    assert "too long for unix sockets" in problems(fake_model, run_dir=Path("/tmp") / ("x" * 100))[0]
    assert "characters" in problems(fake_model, run_dir=Path("/tmp/a b"))[0]


def test_programs_that_are_missing(fake_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_nginx", lambda: None)
    assert problems(fake_model) == ["nginx is not installed (apt-get install nginx-light)"]


def test_what_this_user_may_not(fake_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith(".safetensors"))
    (problem,) = problems(fake_model)
    assert problem.endswith("model.safetensors is not readable for this user")


def test_ranks_that_the_heads_cannot_be_shared_out_among(fake_model: Path) -> None:
    config = json.loads((fake_model / "config.json").read_text())
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2}
    (fake_model / "config.json").write_text(json.dumps(config | heads))
    assert not any("tensor_parallel_size" in problem for problem in problems(fake_model, tensor_parallel_size=4))
    found = [p for p in problems(fake_model, tensor_parallel_size=5) if "tensor_parallel_size" in p]
    assert len(found) == 1
    assert found[0].endswith("12 attention heads and 2 KV heads evenly: set it to one of 1, 2, 4, 6, 12")
