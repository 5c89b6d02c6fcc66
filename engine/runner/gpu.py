"""What loading does on a GPU only: measure memory, make staging buffers and graphs, compile before requests come.

Everything but the graphs' backend and the memory's reader works on a CPU too, where tests run it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.kernels import KVLayer
from engine.kernels.batch import StepBatch
from engine.messages import SamplingParams
from engine.models.decoder import DecoderForCausalLM
from engine.runner.cuda_graphs import MAX_ROWS, DecodeGraphs, GraphBackend, GraphLimits
from engine.runner.forward_pass import ForwardPass, GpuParts
from engine.runner.inputs import StepArrays, place_inputs
from engine.runner.kv_cache import count_blocks
from engine.runner.load_plan import LoadPlan
from engine.runner.memory import DeviceMemory, kv_cache_bytes
from engine.runner.staging import Staging, staging_capacity
from engine.step import Progress, StepInput, StepRow

ALLOCATED_PERCENT, CAPTURED_PERCENT = 85.0, 92.0  # where the phases end
PREFILL_TILES = (16, 32, 64, 128)  # query rows that attention may take at once
DECODE_CONTEXTS = (64, 128, 256, 512, 1024, 2048)
SHAPED = SamplingParams(
    max_tokens=1, seed=0, temperature=1.0, top_k=2, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.1
)
GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


def make_gpu_forward_pass(
    plan: LoadPlan, model: DecoderForCausalLM, num_blocks: int, progress: Progress, backend: GraphBackend
) -> ForwardPass:
    """The forward pass over a KV cache of this size, its graphs captured."""
    # One block more than the scheduler knows of, for the padding rows of graphs.
    kv_cache, staging, graphs = plan.make_kv_cache(num_blocks + 1), make_staging(plan), None
    if not plan.config.enforce_eager:
        graphs = make_graphs(plan, model, kv_cache, staging, scratch_block=num_blocks)
        span = CAPTURED_PERCENT - ALLOCATED_PERCENT
        with torch.inference_mode():
            graphs.capture(backend, lambda share: progress("capturing cuda graphs", ALLOCATED_PERCENT + span * share))
    gpu = GpuParts(staging, graphs, plan.config.gpu_memory_utilization)
    return ForwardPass(model, kv_cache, plan.config.block_size, plan.device, gpu)


def make_staging(plan: LoadPlan) -> Staging:
    """Room for the biggest step."""
    config = plan.config
    width = -(-plan.max_model_len // config.block_size)
    max_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
    return Staging(staging_capacity(max_tokens, max(config.max_num_seqs, MAX_ROWS), width), plan.device)


def make_graphs(
    plan: LoadPlan, model: DecoderForCausalLM, kv_cache: list[KVLayer], staging: Staging, scratch_block: int
) -> DecodeGraphs:
    """Graphs, not captured yet, of forward pass and logits."""

    def run(token_ids: Tensor, batch: StepBatch) -> Tensor:
        x = model.forward(token_ids, batch, kv_cache)
        return model.compute_logits(x, torch.arange(x.shape[0], device=x.device))

    config = plan.config
    width = -(-plan.max_model_len // config.block_size)
    limits = GraphLimits(config.max_num_seqs, width, config.block_size, plan.max_model_len, scratch_block)
    return DecodeGraphs(run, limits, staging, plan.device)


def measure_blocks(plan: LoadPlan, model: DecoderForCausalLM, memory: DeviceMemory) -> int:
    """KV blocks that fit beside the loaded model and its biggest step."""
    small = plan.make_kv_cache(1)
    left = kv_cache_bytes(plan.config, memory, lambda: run_biggest_step(plan, model, small))
    return count_blocks(plan.config, plan.block_bytes, plan.max_model_len, left - plan.block_bytes)


def run_biggest_step(plan: LoadPlan, model: DecoderForCausalLM, kv_cache: list[KVLayer]) -> None:
    """A step of the whole token budget whose rows all sample; every token goes to the cache's only block."""
    config = plan.config
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    counts = np.full(rows, config.max_num_batched_tokens // rows, dtype=np.int32)
    counts[0] += config.max_num_batched_tokens % rows
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    positions = np.minimum(np.concatenate([np.arange(count) for count in counts]), plan.max_model_len - 1)
    width = int(-(-counts.max() // config.block_size))
    arrays = StepArrays(
        token_ids=np.zeros(starts[-1], dtype=np.int32),
        positions=positions.astype(np.int32),
        slots=(positions % config.block_size).astype(np.int32),
        query_start_loc=starts,
        seq_lens=counts,
        block_tables=np.zeros((rows, width), dtype=np.int32),
        sample_rows=starts[1:].astype(np.int64) - 1,
    )
    inputs = place_inputs(arrays, config.block_size, plan.device)
    model.compute_logits(model.forward(inputs.token_ids, inputs.batch, kv_cache), inputs.sample_rows)


def warm_up_steps(plan: LoadPlan) -> Iterator[StepInput]:
    """Steps that between them launch every variant of every kernel that a request may need. They write KV block 0."""
    longest = min(plan.max_model_len, plan.config.max_num_batched_tokens - 1)
    group = plan.shard.heads.size // plan.shard.kv_heads.size
    for tile in PREFILL_TILES:
        length = max(2, tile // group)
        if length <= longest:
            yield StepInput([_row("prefill", length, 0), _row("decode", 1, 0)])
    for context in DECODE_CONTEXTS:  # a decode beside a prefill, split among as many programs as each context asks for
        if context <= plan.max_model_len and longest >= 2:
            yield StepInput([_row("prefill", 2, 0), _row("decode", context, context - 1)])
    yield StepInput([_row("shaped", 1, 0, SHAPED)])


def _row(name: str, length: int, start: int, sampling: SamplingParams = GREEDY) -> StepRow:
    # Every token is the prompt's; all share one block, whatever the block size.
    return StepRow(f"warm-up {name}", [0] * length, [], start, length - start, [0] * length, sampling, samples=True)
