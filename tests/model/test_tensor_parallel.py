"""Two ranks on the CPU, met over gloo: the logits and tokens of one rank, and one rank's promises."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from appliance.bake import bake
from engine.config import EngineConfig, SpeculationConfig
from engine.errors import ConfigError, RankLostError
from engine.layers.group import Alone, Group
from engine.messages import RequestOutput
from engine.runner import make_runner
from engine.runner.forward_pass import Work
from engine.runner.gpu import make_gpu_forward_pass
from engine.runner.inputs import StepArrays, make_arrays
from engine.runner.load_plan import choose_device
from engine.runner.model_loading import ModelLoading
from engine.runner.parallel import process
from engine.runner.parallel.ranks import Ranks
from engine.runner.parallel.step_bytes import decode_work, encode_work
from engine.step import StepInput, StepRow
from tests.model.driver import SAMPLING, Engine, make_prompts, make_request
from tests.model.recorded_graphs import RecordingBackend
from tests.model.truth import relative_error
from tests.tiny_models import VOCAB_SIZE, TinyModel

# Untied, tied with biases on every projection, biased qkv, q and k norms, one KV head that both ranks have.
MODELS = ("llama", "llama-tied-biased", "qwen2", "qwen3", "qwen3-tied-biased")
PROMPT = make_prompts(1, VOCAB_SIZE, seed=7, longest=1)[0] + list(range(3, 243, 2))
PROMPTS = make_prompts(12, VOCAB_SIZE, seed=3, longest=60)
KINDS = (
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0, "seed": 1234},
    {"temperature": 0.8, "seed": -5, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1, "prompt_logprobs": 1},
)
REQUESTS = [make_request(str(i), prompt, max_tokens=24, **KINDS[i % 3]) for i, prompt in enumerate(PROMPTS)]

PATIENCE_S = 60.0

GetEngine = Callable[[str], Engine]


@pytest.fixture(scope="module")
def two_ranks(tiny: Callable[[str], TinyModel]) -> Iterator[GetEngine]:
    """The engine of a tiny model over two ranks."""
    started: list[Engine] = []

    @cache
    def start(name: str) -> Engine:
        started.append(Engine(tiny(name).baked, "cpu", tensor_parallel_size=2))
        return started[-1]

    yield start
    for engine in started:
        engine.runner.close()


@pytest.fixture(scope="module")
def one_rank(tiny: Callable[[str], TinyModel]) -> GetEngine:
    return cache(lambda name: Engine(tiny(name).baked, "cpu"))


def make_config(baked: Path, **config: Any) -> EngineConfig:
    defaults: dict[str, Any] = {"device": "cpu", "num_threads": 1, "num_gpu_blocks_override": 32}
    return EngineConfig(model_path=baked, socket_path=Path("unused"), **(defaults | config))


def ignore(phase: str, percent: float) -> None:
    """No progress wanted."""


def assert_same(found: dict[str, RequestOutput], expected: dict[str, RequestOutput]) -> None:
    assert {key: output.token_ids for key, output in found.items()} == {
        key: output.token_ids for key, output in expected.items()
    }
    for key, output in expected.items():
        for name in ("logprobs", "prompt_logprobs"):
            pairs = zip(getattr(found[key], name) or [], getattr(output, name) or [], strict=True)
            assert all(a == b or a.logprob == pytest.approx(b.logprob, abs=1e-3) for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_one_rank(name: str, one_rank: GetEngine, two_ranks: GetEngine) -> None:
    found = two_ranks(name).logits(PROMPT)
    assert relative_error(found, one_rank(name).logits(PROMPT)) < 1e-5
    for cuts in ([1, 2, 3, 20, 36, 100], range(90, len(PROMPT))):
        assert torch.equal(two_ranks(name).logits(PROMPT, list(cuts)), found)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_one_rank(name: str, one_rank: GetEngine, two_ranks: GetEngine) -> None:
    expected = one_rank(name).start().generate(REQUESTS)
    run = two_ranks(name).start(max_num_batched_tokens=48, max_num_seqs=7)
    assert_same(run.generate(REQUESTS), expected)
    again = run.generate(REQUESTS)
    assert sum(output.num_cached_tokens or 0 for output in again.values()) > 0
    assert_same(again, expected)


def test_preempted(one_rank: GetEngine, two_ranks: GetEngine) -> None:
    expected = one_rank("llama").start().generate(REQUESTS)
    run = two_ranks("llama").start(num_blocks=16)
    assert_same(run.generate(REQUESTS), expected)
    assert run.preempted


def test_drafts(one_rank: GetEngine, two_ranks: GetEngine) -> None:
    expected = one_rank("llama").start().generate(REQUESTS)
    speculation = SpeculationConfig(num_speculative_tokens=4, prompt_lookup_min=1, adaptive=False)
    assert_same(two_ranks("llama").start(speculation=speculation).generate(REQUESTS), expected)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_packed_weights(quantization: str, tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    bake(str(tiny("llama").source), tmp_path / "packed", quantization=quantization, name="packed")
    exact: dict[str, Any] = {"kv_cache_dtype": "float32"}  # what differs in the last bit must not be rounded apart
    one, two = (Engine(tmp_path / "packed", "cpu", tensor_parallel_size=size, **exact) for size in (1, 2))
    try:
        assert relative_error(two.logits(PROMPT), one.logits(PROMPT)) < 1e-3
    finally:
        two.runner.close()


def test_the_reference_ops_over_two_ranks(tiny: Callable[[str], TinyModel], one_rank: GetEngine) -> None:
    engine = Engine(tiny("qwen3").baked, "reference", tensor_parallel_size=2)
    try:
        assert relative_error(engine.logits(PROMPT), one_rank("qwen3").logits(PROMPT)) < 1e-5
    finally:
        engine.runner.close()


# int4_a8 rounds the part of a row that a rank has; which groups of it stand out may differ from the whole row's.
@pytest.mark.parametrize(("quantization", "tolerance"), [("int4", 2e-3), ("shipped", 2e-2)])
def test_three_ranks_of_the_default_model_keep_their_order(
    baked_as: Callable[[str], Path], quantization: str, tolerance: float
) -> None:
    prompt = make_prompts(1, 49152, seed=1, longest=1)[0] * 5 + list(range(1000, 1040))
    config = {"max_model_len": 256, "num_gpu_blocks_override": 16}
    model = baked_as(quantization)
    expected = Engine(model, "cpu", **config).logits(prompt)
    engine = Engine(model, "cpu", tensor_parallel_size=3, **config)
    try:
        found = engine.logits(prompt)
        assert relative_error(found, expected) < tolerance
        assert torch.equal(engine.logits(prompt, [1, 2, 30]), found)
    finally:
        engine.runner.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_two_gpus(tiny: Callable[[str], TinyModel], enforce_eager: bool) -> None:
    config = {"device": "cuda", "dtype": "float32", "enforce_eager": enforce_eager}
    one, two = (Engine(tiny("qwen3").baked, "cuda", tensor_parallel_size=size, **config) for size in (1, 2))
    try:
        assert relative_error(two.logits(PROMPT), one.logits(PROMPT)) < 1e-2
        assert two.start().generate(REQUESTS[:1])["0"].token_ids == one.start().generate(REQUESTS[:1])["0"].token_ids
    finally:
        two.runner.close()


# --- what a GPU's ranks do, without GPUs ---


class ThreadGroup:
    """A `Group` whose ranks are threads."""

    size = 2

    def __init__(self, rank: int, parts: list[Tensor | None], barrier: threading.Barrier) -> None:
        self.rank, self._parts, self._barrier = rank, parts, barrier

    def sum_(self, x: Tensor) -> None:
        x.copy_(self.gather(x).sum(0))

    def gather(self, x: Tensor) -> Tensor:
        self._parts[self.rank] = x.clone()
        self._barrier.wait(PATIENCE_S)
        gathered = torch.stack([part for part in self._parts if part is not None])
        self._barrier.wait(PATIENCE_S)
        return gathered


def test_graphs_of_two_ranks_are_captured_and_replayed_in_step(tiny: Callable[[str], TinyModel]) -> None:
    baked = tiny("qwen3").baked
    config = make_config(baked, max_num_seqs=6, max_num_batched_tokens=48, max_model_len=64, tensor_parallel_size=2)
    alone = ModelLoading(dataclasses.replace(config, tensor_parallel_size=1), ignore, "reference")
    parts: list[Tensor | None] = [None, None]
    barrier = threading.Barrier(2)
    decode = [StepRow(str(i), [7 * i + 3], [], 0, 1, [i], SAMPLING, samples=True) for i in range(5)]
    prompt = StepRow("p", list(range(20)), [], 0, 20, [6, 7], SAMPLING, samples=True)
    works = [Work(make_arrays(StepInput(rows), 16), np.arange(0)) for rows in (decode, [prompt], decode[:3])]

    def run(loading: ModelLoading, group: Group) -> tuple[list[Tensor], int]:
        backend = RecordingBackend()
        forward = make_gpu_forward_pass(loading.plan, loading.load_model(group), 16, ignore, backend)
        logits = []
        with torch.inference_mode():
            for work in works:
                sampled = forward.run(work).sampled
                assert sampled is not None
                logits.append(sampled.clone())
        return logits, sum(graph.replays for graph in backend.graphs)

    expected, _ = run(alone, Alone())
    with ThreadPoolExecutor(2) as pool:
        loadings = [ModelLoading(config, ignore, "reference", rank) for rank in range(2)]
        groups = [ThreadGroup(rank, parts, barrier) for rank in range(2)]
        results = list(pool.map(run, loadings, groups))
    for found, num_replays in results:
        assert num_replays == 2  # of three steps; one is a prefill
        errors = [relative_error(logits, right) for logits, right in zip(found, expected, strict=True)]
        assert max(errors) < 1e-5


def test_the_kv_cache_fits_the_fullest_rank() -> None:
    @dataclasses.dataclass
    class Reporting:
        num_blocks: int

        def wait(self, phase: str) -> None:
            assert phase == "loaded"

        def wait_count(self) -> int:
            return self.num_blocks

    ranks = Ranks()
    ranks._processes = [Reporting(70), Reporting(50)]  # type: ignore[list-item]
    assert ranks.fewest_blocks(lambda: 60) == 50
    assert ranks.fewest_blocks(lambda: 40) == 40


# --- what cannot be ---


def test_heads_that_do_not_share_out(tiny: Callable[[str], TinyModel]) -> None:
    with pytest.raises(ConfigError, match="4 attention heads and 2 KV heads evenly: set it to one of 1, 2, 4"):
        make_runner(make_config(tiny("llama").baked, tensor_parallel_size=3))


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(choose_device("auto", rank, 2)) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert str(choose_device("cuda")) == "cuda"
    assert str(choose_device("cpu", 3, 4)) == "cpu"
    with pytest.raises(ConfigError, match="tensor_parallel_size 4 needs as many GPUs, and torch finds 2"):
        choose_device("cuda", 0, 4)


def test_a_rank_that_cannot_start_is_named(tiny: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MODULE", "engine.no_such_rank")
    with pytest.raises(RankLostError, match=r"rank 1 of tensor parallelism \(pid \d+\) ended with status 1"):
        make_runner(make_config(tiny("llama").baked, tensor_parallel_size=2))


def test_a_step_survives_the_way_to_another_rank() -> None:
    arrays = StepArrays(
        token_ids=np.array([5, 6, 7], dtype=np.int32),
        positions=np.array([0, 1, 9], dtype=np.int32),
        slots=np.array([32, 33, 1], dtype=np.int32),
        query_start_loc=np.array([0, 2, 3], dtype=np.int32),
        seq_lens=np.array([2, 10], dtype=np.int32),
        block_tables=np.array([[2, 0, 0], [4, 0, 1]], dtype=np.int32),
        sample_rows=np.array([2], dtype=np.int64),
    )
    work = Work(arrays, np.array([0, 1], dtype=np.int64))
    found = decode_work(encode_work(work))
    assert found.prompt_rows.tolist() == [0, 1]
    for name in StepArrays.__slots__:
        before, after = getattr(arrays, name), getattr(found.arrays, name)
        assert after.dtype == before.dtype
        assert after.tolist() == before.tolist()
