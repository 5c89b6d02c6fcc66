"""The runner's own part: inputs, prompt logprobs, mixed steps, loading and what it refuses."""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kernels.native.packing import has_huge_pages, map_memory
from engine.messages import SamplingParams
from engine.models.config import load_model_config, parse_model_config
from engine.models.loader import MappedWeights
from engine.runner import make_runner, weight_memory
from engine.runner.inputs import make_inputs
from engine.runner.kv_cache import free_memory_bytes
from engine.step import StepInput, StepRow
from tests.model.driver import Engine, make_prompts, make_request
from tests.tiny_models import VOCAB_SIZE, TinyModel

CPU = torch.device("cpu")


def make_row(prompt: list[int], output: list[int], start: int, count: int, blocks: list[int]) -> StepRow:
    samples = start + count == len(prompt) + len(output)
    return StepRow("r", prompt, output, start, count, blocks, SamplingParams(max_tokens=9, seed=0), samples)


def load(baked: Path, **config: Any) -> Any:
    defaults: dict[str, Any] = {"num_threads": 1, "device": "cpu", "num_gpu_blocks_override": 32}
    return make_runner(
        EngineConfig(model_path=baked, socket_path=Path("unused"), **(defaults | config)), None, "reference"
    )


# --- inputs ---


def test_inputs_of_a_mixed_step() -> None:
    rows = [
        make_row([10, 11, 12, 13, 14, 15], [], 2, 3, [5, 0]),  # a chunk inside the prompt
        make_row([20, 21], [22, 23], 3, 1, [7]),  # decode
        make_row([30, 31], [32, 33, 34], 1, 4, [1, 2]),  # recomputed over the prompt's end
    ]
    inputs = make_inputs(StepInput(rows), 4, CPU)
    assert inputs.token_ids.tolist() == [12, 13, 14, 23, 31, 32, 33, 34]
    assert inputs.batch.positions.tolist() == [2, 3, 4, 3, 1, 2, 3, 4]
    assert inputs.batch.slot_mapping.tolist() == [22, 23, 0, 31, 5, 6, 7, 8]
    assert inputs.batch.query_start_loc.tolist() == [0, 3, 4, 8]
    assert inputs.batch.seq_lens.tolist() == [5, 4, 5]
    assert inputs.batch.block_tables.tolist() == [[5, 0], [7, 0], [1, 2]]
    assert (inputs.batch.max_query_len, inputs.batch.max_seq_len) == (4, 5)
    assert inputs.sample_rows.tolist() == [3, 7]
    assert inputs.batch.positions.dtype is inputs.batch.block_tables.dtype is torch.int32


def test_a_step_where_nobody_samples(tiny_engine: Callable[[str], Engine]) -> None:
    output = tiny_engine("llama").runner.execute(StepInput([make_row([1, 2, 3], [], 0, 2, [0])]))
    assert (output.token_ids, output.logprobs, output.prompt_logprobs) == ([[]], [None], [None])


# --- prompt logprobs ---


@pytest.mark.parametrize("budget", [7, 128])
def test_prompt_logprobs_are_those_of_the_logits(tiny_engine: Callable[[str], Engine], budget: int) -> None:
    engine = tiny_engine("qwen2")
    prompt = make_prompts(1, VOCAB_SIZE, seed=2, longest=1)[0] * 3 + list(range(100))
    run = engine.start(max_num_batched_tokens=budget, max_num_seqs=4)
    found = run.generate([make_request("p", prompt, max_tokens=2, prompt_logprobs=3)])["p"].prompt_logprobs
    assert found is not None
    assert found[0] is None
    assert len(found) == len(prompt)
    logprobs = torch.log_softmax(engine.logits(prompt), -1)
    for position, entry in enumerate(found[1:]):
        assert entry is not None
        assert entry.token_id == prompt[position + 1]
        assert entry.logprob == pytest.approx(logprobs[position, entry.token_id].item(), abs=1e-5)
        assert entry.rank == int((logprobs[position] > logprobs[position, entry.token_id]).sum()) + 1
        assert [token_id for token_id, _ in entry.top] == logprobs[position].topk(3).indices.tolist()


# --- loading ---


def test_progress_rises_through_the_phases(tiny: Callable[[str], TinyModel]) -> None:
    seen: list[tuple[str, float]] = []
    config = EngineConfig(model_path=tiny("llama").baked, socket_path=Path("unused"), num_threads=1, device="cpu")
    make_runner(config, lambda phase, percent: seen.append((phase, percent)), "reference")
    assert list(dict.fromkeys(phase for phase, _ in seen)) == ["loading weights", "allocating kv cache", "warming up"]
    percents = [percent for _, percent in seen]
    assert percents == sorted(percents)
    assert all(0 <= percent <= 100 for percent in percents)


def test_info_holds_what_was_found(tiny: Callable[[str], TinyModel]) -> None:
    info = load(tiny("llama").baked, max_model_len=200, block_size=32, extra_eos_token_ids=(5,)).info
    assert (info.num_blocks, info.block_size, info.max_model_len, info.vocab_size) == (32, 32, 200, VOCAB_SIZE)
    assert info.eos_token_ids == {257, 5}
    assert (info.dtype, info.device) == ("float32", "cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(
    dtype: str, tiny: Callable[[str], TinyModel], tiny_engine: Callable[[str], Engine]
) -> None:
    prompt = make_prompts(1, VOCAB_SIZE, seed=4)[0]
    half, full = Engine(tiny("llama").baked, dtype=dtype).logits(prompt), tiny_engine("llama").logits(prompt)
    assert half.dtype is torch.float32
    assert (half - full).abs().mean() < 0.05 * full.abs().mean()


def test_kv_memory_becomes_blocks(tiny: Callable[[str], TinyModel]) -> None:
    block_bytes = 2 * 16 * 2 * 16 * 3 * 4  # K and V, slots, KV heads, head size, layers, float32
    baked = tiny("llama").baked
    sized = load(baked, num_gpu_blocks_override=None, kv_cache_memory_bytes=20 * block_bytes + 5)
    assert sized.info.num_blocks == 20
    derived = load(baked, num_gpu_blocks_override=None, max_num_seqs=3)
    assert derived.info.num_blocks == 3 * 256 // 16  # never more than all requests at their longest


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_gpu_blocks_override": 15}, "set num_gpu_blocks_override to at least 16 or max_model_len to at most 240"),
        (
            {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 50_000},
            "set kv_cache_memory_bytes to at least 196608 or max_model_len to at most 64",
        ),
        ({"max_model_len": 257}, "max_model_len 257 is out of range: the model's context is 256 tokens"),
        ({"dtype": "int3"}, "dtype must be auto, float32, bfloat16, float16, not 'int3'"),
        ({"device": "tpu"}, "device must be auto, cpu or cuda, not 'tpu'"),
    ],
)
def test_impossible_configurations(config: dict[str, Any], message: str, tiny: Callable[[str], TinyModel]) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tiny("llama").baked, **config)


def test_stretched_context_is_allowed(tiny: Callable[[str], TinyModel]) -> None:
    assert load(tiny("llama-dynamic").baked, max_model_len=512).info.max_model_len == 512


def test_free_memory_respects_the_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n", encoding="ascii")
    assert free_memory_bytes(meminfo, tmp_path) == 51200
    (tmp_path / "memory.max").write_text("30000\n")
    (tmp_path / "memory.current").write_text("10000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 20000
    (tmp_path / "memory.stat").write_text("anon 4000\nfile 7000\ninactive_file 2000\nactive_file 3000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 25000  # what the kernel drops first is free, as in MemAvailable
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(meminfo, tmp_path) == 51200


def test_free_memory_respects_a_container_of_version_1(tmp_path: Path) -> None:
    meminfo, folder = tmp_path / "meminfo", tmp_path / "memory"
    meminfo.write_text("MemAvailable:   50 kB\n", encoding="ascii")
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("30000\n")
    (folder / "memory.usage_in_bytes").write_text("10000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 20000
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 2000\ntotal_active_file 3000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 25000
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # none
    assert free_memory_bytes(meminfo, tmp_path) == 51200


# --- broken models ---


@pytest.fixture
def baked(tiny: Callable[[str], TinyModel], tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(tiny("llama").baked, tmp_path / "model"))


def edit_config(baked: Path, **fields: Any) -> None:
    raw = json.loads((baked / "config.json").read_text()) | fields
    (baked / "config.json").write_text(json.dumps(raw))


def test_weights_are_views_of_the_file(baked: Path) -> None:
    weights = MappedWeights(baked / "model.safetensors")
    first, second = weights.get("norm.weight"), weights.get("norm.weight")
    assert first.data_ptr() == second.data_ptr()
    assert first.data_ptr() % 64 == weights.get("embed_tokens.weight").data_ptr() % 64


def test_weights_that_were_read_are_those_of_the_file(baked: Path) -> None:
    told: list[float] = []
    mapped = MappedWeights(baked / "model.safetensors")
    read = MappedWeights(baked / "model.safetensors", told.append)
    read.read_into(map_memory(read.nbytes))
    assert told == sorted(told)
    assert told[-1] == 1.0
    for name in json.loads(_header(baked)).keys() - {"__metadata__"}:
        ours, theirs = read.get(name), mapped.get(name)
        assert isinstance(ours, torch.Tensor)
        assert isinstance(theirs, torch.Tensor)
        assert torch.equal(ours, theirs)
    assert told[-1] == 1.0  # handing out is no progress any more


def test_a_file_that_shrinks_while_it_is_read(baked: Path) -> None:
    file = baked / "model.safetensors"
    weights = MappedWeights(file)
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - 4096)
    with pytest.raises(ConfigError, match="became shorter while it was read"):
        weights.read_into(map_memory(weights.nbytes))


def test_a_file_that_is_replaced_before_it_is_read(baked: Path) -> None:
    """Where its tensors lie was read from the one before."""
    file = baked / "model.safetensors"
    weights = MappedWeights(file)
    content = bytearray(file.read_bytes())
    content[content.index(b"norm.weight")] = ord("N")
    file.with_name("new").write_bytes(content)
    file.with_name("new").replace(file)
    with pytest.raises(ConfigError, match="was replaced while it was read"):
        weights.read_into(map_memory(weights.nbytes))


def test_a_file_system_that_gives_less_than_it_was_asked_for(baked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, offset: read(file, [parts[0][:1000]], offset))
    weights = MappedWeights(baked / "model.safetensors")
    memory = map_memory(weights.nbytes)
    weights.read_into(memory)
    assert memory[: weights.nbytes] == (baked / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("is_packed", "has_pages", "free", "kv_cache", "is_read"),
    [
        (True, True, 3000, 750, True),
        (False, True, 3000, 750, False),
        (True, False, 3000, 750, False),
        (True, True, 1999, 0, False),
        (True, True, 2000, 500, True),
        (True, True, 2000, 501, False),
    ],
    ids=["room", "not packed", "no huge pages", "short of memory", "just enough", "a larger KV cache"],
)
def test_when_weights_are_read(
    is_packed: bool, has_pages: bool, free: int, kv_cache: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[int] = []
    weights = SimpleNamespace(is_packed=is_packed, nbytes=1000, read_into=lambda memory: memories.append(len(memory)))
    monkeypatch.setattr(weight_memory, "has_huge_pages", lambda: has_pages)
    monkeypatch.setattr(weight_memory, "free_memory_bytes", lambda: free)
    weight_memory.read_into_huge_pages(weights, kv_cache)  # type: ignore[arg-type]
    assert memories == ([1000] if is_read else [])


def test_weights_stay_mapped_where_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 60  # no address space is that large
    weights = SimpleNamespace(is_packed=True, nbytes=size, read_into=lambda memory: pytest.fail("it was read"))
    monkeypatch.setattr(weight_memory, "has_huge_pages", lambda: True)
    monkeypatch.setattr(weight_memory, "free_memory_bytes", lambda: 4 * size)
    weight_memory.read_into_huge_pages(weights, 0)  # type: ignore[arg-type]


def test_memory_of_a_kernel_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # what it does not know it refuses in the same way
    assert map_memory(100)[:] == bytes(100)


def test_whether_there_are_huge_pages(tmp_path: Path) -> None:
    enabled = tmp_path / "enabled"
    assert not has_huge_pages(enabled)
    for text, has_them in (
        ("always [madvise] never", True),
        ("[always] madvise never", True),
        ("always [never]", False),
    ):
        enabled.write_text(text)
        assert has_huge_pages(enabled) is has_them


def _header(baked: Path) -> bytes:
    data = (baked / "model.safetensors").read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["FooModel"]},
            "architecture FooModel is not supported .supported: LlamaForCausalLM, Mistral",
        ),
        ({"num_attention_heads": 3}, "num_attention_heads 3 is not a multiple of num_key_value_heads 2"),
        ({"hidden_size": "many"}, "hidden_size must be a positive integer, not 'many'"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"vocab_size": 300}, r"embed_tokens.weight has shape \[259, 48\], expected \[300, 48\]"),
        ({"num_hidden_layers": 4, "layer_types": None}, "tensor layers.3.input_norm.weight is missing"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_scaling type 'spiral' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling of type linear needs a number factor, not None"),
    ],
)
def test_configs_that_cannot_be_run(fields: dict[str, Any], message: str, baked: Path) -> None:
    edit_config(baked, **fields)
    with pytest.raises(ConfigError, match=message):
        load(baked)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be mapped"),
        (b"\xff" * 40, "is not a safetensors file"),
        (b"\x02\0\0\0\0\0\0\0[]", "is not a safetensors file"),
    ],
)
def test_damaged_weights(content: bytes, message: str, baked: Path) -> None:
    (baked / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load(baked)


def test_truncated_weights(baked: Path) -> None:
    file = baked / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="is truncated"):
        load(baked)


def test_missing_files(baked: Path) -> None:
    (baked / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be mapped"):
        load(baked)
    (baked / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        load_model_config(baked)


def test_eos_of_the_generation_config_wins(baked: Path) -> None:
    (baked / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert load_model_config(baked).eos_token_ids == {1, 2}
    (baked / "generation_config.json").unlink()
    assert load_model_config(baked).eos_token_ids == {257}


def test_windows_by_family() -> None:
    sizes = {
        "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
        "max_position_embeddings": 64, "sliding_window": 5,
    }  # fmt: skip

    def windows(**fields: Any) -> tuple[int | None, ...]:
        return parse_model_config(sizes | fields).sliding_windows

    assert windows(architectures=["MistralForCausalLM"]) == (5, 5, 5)
    assert windows(architectures=["MistralForCausalLM"], sliding_window=None) == (None, None, None)
    assert windows(architectures=["Qwen2ForCausalLM"], max_window_layers=1) == (None, None, None)
    assert windows(architectures=["Qwen2ForCausalLM"], max_window_layers=1, use_sliding_window=True) == (None, 5, 5)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(architectures=["Qwen3ForCausalLM"], use_sliding_window=True, layer_types=kinds) == (5, None, 5)
