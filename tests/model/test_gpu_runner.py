"""The GPU's half of the runner on a CPU, over reference ops: staging, graphs by a stand-in, memory, what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError, EngineError
from engine.layers.build import Build
from engine.messages import RequestOutput
from engine.models.loader import MappedWeights, make_model
from engine.runner.cuda_graphs import DecodeGraphs, GraphLimits, graph_sizes
from engine.runner.forward_pass import ForwardPass
from engine.runner.gpu import make_gpu_forward_pass, make_staging, measure_blocks, run_biggest_step, warm_up_steps
from engine.runner.inputs import StepArrays, make_arrays
from engine.runner.load_plan import LoadPlan, choose_kv_dtype, make_info, make_plan
from engine.runner.memory import GIB, RESERVE, kv_cache_bytes, out_of_memory_while_loading, out_of_memory_while_serving
from engine.runner.model_runner import ModelRunner
from engine.runner.staging import Staging, staging_capacity
from engine.sampling.device import DeviceSampler
from engine.sampling.sampler import Sampler
from engine.step import StepInput, StepRow
from tests.model.driver import make_prompts, make_request, run_to_end
from tests.model.recorded_graphs import RecordingBackend
from tests.tiny_models import VOCAB_SIZE, TinyModel

CPU = torch.device("cpu")
NUM_BLOCKS = 64


class Gib:
    """A device of so many GiB, of which some are used."""

    def __init__(self, total: float, used: float, step: float) -> None:
        self._total, self._used, self._step = (int(GIB * size) for size in (total, used, step))
        self.ran = False

    def total(self) -> int:
        return self._total

    def used(self) -> int:
        return self._used

    def peak_of(self, run: Callable[[], object]) -> int:
        run()
        self.ran = True
        return self._step


def make_config(baked: Path, **config: Any) -> EngineConfig:
    defaults = {
        "num_threads": 1,
        "device": "cpu",
        "max_num_seqs": 6,
        "max_num_batched_tokens": 48,
        "max_model_len": 200,
    }
    return EngineConfig(model_path=baked, socket_path=Path("unused"), **(defaults | config))


def load(baked: Path, **config: Any) -> tuple[LoadPlan, Any]:
    plan = make_plan(make_config(baked, **config), torch.float32, "reference")
    weights = MappedWeights(baked / "model.safetensors")
    with torch.inference_mode():
        return plan, make_model(plan.model, Build(plan.ops, weights, plan.dtype, CPU), plan.max_model_len)


@pytest.fixture(scope="module")
def loaded(tiny: Callable[[str], TinyModel]) -> tuple[LoadPlan, Any]:
    return load(tiny("llama").baked)


# --- the whole runner ---


def make_gpu_runner(plan: LoadPlan, model: Any, backend: RecordingBackend, shares: list[float]) -> ModelRunner:
    forward = make_gpu_forward_pass(plan, model, NUM_BLOCKS, lambda _phase, percent: shares.append(percent), backend)
    info = make_info(plan, NUM_BLOCKS)
    return ModelRunner(forward, info, sampler=DeviceSampler(info.eos_token_ids, plan.sampling_implementation))


def serve(runner: ModelRunner, config: EngineConfig) -> dict[str, RequestOutput]:
    kinds: list[dict[str, Any]] = [
        {"logprobs": 3},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"temperature": 1.0, "min_p": 0.1, "prompt_logprobs": 1, "presence_penalty": 0.5},
        {"logit_bias": {7: 4.0}, "bad_words_token_ids": [[3]]},
    ]
    prompts = make_prompts(len(kinds), VOCAB_SIZE, seed=2, longest=40)
    requests = [
        make_request(str(index), prompt, max_tokens=12 + index, **kind)
        for index, (prompt, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]
    return run_to_end(EngineCore(config, runner), requests)


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_graphs_staging_and_device_sampler_change_no_token(tiny: Any, enforce_eager: bool) -> None:
    plan, model = load(tiny("qwen3").baked, enforce_eager=enforce_eager)
    backend, shares = RecordingBackend(), list[float]()
    runner = make_gpu_runner(plan, model, backend, shares)
    plain = ModelRunner(ForwardPass(model, plan.make_kv_cache(NUM_BLOCKS), plan.config.block_size, CPU), runner.info)
    found, expected = serve(runner, plan.config), serve(plain, plan.config)
    assert {i: o.token_ids for i, o in found.items()} == {i: o.token_ids for i, o in expected.items()}
    assert found["0"].logprobs == expected["0"].logprobs
    assert found["3"].prompt_logprobs == expected["3"].prompt_logprobs
    assert shares == sorted(shares)
    assert (sum(graph.replays for graph in backend.graphs) > 0) is not enforce_eager


def test_warm_up_steps_are_ones_that_the_runner_takes(loaded: tuple[LoadPlan, Any]) -> None:
    plan, model = loaded
    runner = make_gpu_runner(plan, model, RecordingBackend(), [])
    steps = list(warm_up_steps(plan))
    for step in steps:
        assert len(runner.execute(step).token_ids) == len(step.rows)
        assert step.num_tokens <= plan.config.max_num_batched_tokens
    assert max(row.num_computed_tokens for step in steps for row in step.rows) == 127  # of contexts up to 200


# --- graphs ---


def test_graph_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(1000)[-1] == 256


def make_graphs(max_rows: int = 6) -> tuple[DecodeGraphs, RecordingBackend]:
    """Graphs whose output shows what they read: [size, 5] of id, position, slot, length, first block."""

    def run(token_ids: Tensor, batch: Any) -> Tensor:
        assert batch.query_start_loc.tolist() == list(range(len(token_ids) + 1))
        columns = [token_ids, batch.positions, batch.slot_mapping, batch.seq_lens, batch.block_tables[:, 0]]
        return torch.stack(columns, dim=1)

    limits = GraphLimits(max_rows, table_width=10, block_size=4, max_model_len=40, scratch_block=99)
    graphs, backend = DecodeGraphs(run, limits, Staging(1000, CPU), CPU), RecordingBackend()
    graphs.capture(backend)
    return graphs, backend


def decode_arrays(rows: int, samples: int | None = None) -> StepArrays:
    order = np.arange(rows, dtype=np.int32)
    return StepArrays(
        token_ids=order + 10,
        positions=order + 4,
        slots=order + 40,
        query_start_loc=np.arange(rows + 1, dtype=np.int32),
        seq_lens=order + 5,
        block_tables=np.stack([order + 1, order + 7], axis=1),
        sample_rows=np.arange(rows if samples is None else samples),
    )


def test_a_batch_is_padded_with_rows_that_write_to_the_scratch_block() -> None:
    graphs, backend = make_graphs()
    assert [graph.output.shape[0] for graph in backend.graphs] == [6, 4, 2, 1]  # the largest first
    assert graphs.replay(decode_arrays(3)).tolist() == [[10, 4, 40, 5, 1], [11, 5, 41, 6, 2], [12, 6, 42, 7, 3]]
    assert backend.graphs[1].output[3].tolist() == [0, 0, 99 * 4, 1, 99]
    graphs.replay(decode_arrays(6))
    assert graphs.replay(decode_arrays(1)).tolist() == [[10, 4, 40, 5, 1]]
    assert [graph.replays for graph in backend.graphs] == [1, 1, 0, 1]


def test_which_steps_a_graph_holds() -> None:
    graphs, _ = make_graphs()
    assert graphs.holds(decode_arrays(6))
    assert not graphs.holds(decode_arrays(7))  # more rows than were captured
    assert not graphs.holds(decode_arrays(3, samples=2))  # a row ends inside its prompt
    longer = dataclasses.replace(decode_arrays(2), token_ids=np.zeros(5, dtype=np.int32))
    assert not graphs.holds(longer)


# --- staging ---


def test_arrays_are_staged_side_by_side_and_survive_the_next_step() -> None:
    staging = Staging(staging_capacity(8, 4, 3), CPU)
    first = staging.put([np.arange(3, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(2, 3)])
    second = staging.put([np.full(4, 9, dtype=np.int32)])
    assert [tensor.tolist() for tensor in first] == [[0, 1, 2], [[0, 1, 2], [3, 4, 5]]]
    assert second[0].tolist() == [9] * 4
    assert all(tensor.storage_offset() % 16 == 0 for tensor in first)


def test_the_biggest_step_fits_the_staging_buffer(loaded: tuple[LoadPlan, Any]) -> None:
    plan, _ = loaded
    width = -(-plan.max_model_len // plan.config.block_size)
    rows, tokens = plan.config.max_num_seqs, plan.config.max_num_batched_tokens
    row = StepRow("r", [1] * 200, [], 0, tokens // rows, [0] * width, make_request("r", [1]).sampling, samples=True)
    arrays = make_arrays(StepInput([row] * rows), plan.config.block_size)
    inputs = make_staging(plan).make_inputs(arrays, plan.config.block_size)
    assert inputs.token_ids.shape == (tokens,)
    assert inputs.batch.block_tables.shape == (rows, width)


# --- memory ---


def test_the_kv_cache_takes_what_weights_and_the_biggest_step_leave(loaded: tuple[LoadPlan, Any]) -> None:
    plan, model = loaded
    memory = Gib(total=10, used=6, step=1)
    left = kv_cache_bytes(plan.config, memory, lambda: None)
    assert left == int(10 * GIB * plan.config.gpu_memory_utilization) - 7 * GIB - RESERVE
    assert measure_blocks(plan, model, memory) == (left - plan.block_bytes) // plan.block_bytes
    assert memory.ran


def test_the_biggest_step_runs(loaded: tuple[LoadPlan, Any]) -> None:
    plan, model = loaded
    with torch.inference_mode():
        run_biggest_step(plan, model, plan.make_kv_cache(1))


def test_what_does_not_fit_names_the_number_to_change(loaded: tuple[LoadPlan, Any]) -> None:
    plan, model = loaded
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization above 1\.0.*max_num_batched_tokens below 48"):
        kv_cache_bytes(plan.config, Gib(total=10, used=9.5, step=0.4), lambda: None)
    three_blocks = (RESERVE + 4 * plan.block_bytes) / GIB  # one of them for the scratch block
    with pytest.raises(ConfigError, match=r"holds 48 tokens.* set gpu_memory_utilization above 0\.92 or max_model_len"):
        measure_blocks(plan, model, Gib(total=10, used=9.2 - three_blocks, step=0))
    loading = pytest.raises(ConfigError, match=r"while loading \(tried to allocate 3 GiB\): set max_num_batched_tokens")
    with loading, out_of_memory_while_loading(plan.config):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB\nand more")
    serving = pytest.raises(EngineError, match=r"out of GPU memory in a step .*set gpu_memory_utilization below 0\.92")
    with serving, out_of_memory_while_serving(0.92):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")


@pytest.mark.parametrize(
    ("name", "implementation", "expected"),
    [("auto", "cpu", torch.float16), ("int8", "cuda", torch.int8), ("fp8", "reference", torch.float8_e4m3fn)],
)
def test_types_of_the_kv_cache(name: str, implementation: str, expected: torch.dtype) -> None:
    assert choose_kv_dtype(name, torch.float16, CPU, implementation) is expected


@pytest.mark.parametrize(
    ("name", "implementation", "expected"),
    [
        ("auto", "cpu", torch.bfloat16),
        ("float32", "cpu", torch.float32),
        ("auto", "reference", torch.float32),
        ("auto", "cuda", torch.float32),
    ],
)
def test_types_of_the_kv_cache_beside_packed_weights(name: str, implementation: str, expected: torch.dtype) -> None:
    assert choose_kv_dtype(name, torch.float32, CPU, implementation, has_packed_weights=True) is expected


def test_refused_types_of_the_kv_cache() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype must be auto, float32, bfloat16, int8, fp8"):
        choose_kv_dtype("int3", torch.float16, CPU, "reference")
    with pytest.raises(ConfigError, match="kv_cache_dtype float32 is for a CPU"):
        choose_kv_dtype("float32", torch.float16, torch.device("cuda"), "cuda")
    with pytest.raises(ConfigError, match="kv_cache_dtype fp8 needs a GPU"):
        choose_kv_dtype("fp8", torch.float16, CPU, "cpu")


# --- sampler ---


def test_the_device_sampler_picks_what_the_sampler_picks() -> None:
    torch.manual_seed(0)
    rows = []
    for index in range(40):
        sampling = make_request(
            str(index),
            [1],
            temperature=[0.0, 1.0, 0.5, 1.3][index % 4],
            seed=index - 20,
            top_k=[0, 5, 0][index % 3],
            top_p=[1.0, 0.8][index % 2],
            min_p=[0.0, 0.0, 0.1][index % 3],
            repetition_penalty=[1.0, 1.3][index % 2],
            frequency_penalty=[0.0, 0.4, 0.0][index % 3],
            min_tokens=[0, 9][index % 2],
        ).sampling
        mask = np.array([0b1011_0110, 0xFF], dtype=np.int32) if index % 5 == 0 else None
        rows.append(StepRow(str(index), [1, 2, 3], [2, 2, 5], 0, 1, [0], sampling, samples=True, token_mask=mask))
    logits = torch.randn(40, 50) * 2
    expected = Sampler(frozenset([4])).sample(logits.clone(), rows)
    assert DeviceSampler(frozenset([4]), "reference").sample(logits.clone(), rows) == expected
