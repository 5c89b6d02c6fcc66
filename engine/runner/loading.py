"""From a configuration to a runner: weights, KV cache, a warm-up; progress is told on the way."""

from __future__ import annotations

import logging

import torch

from engine.config import EngineConfig
from engine.kernels import set_num_threads
from engine.layers.build import Build
from engine.messages import SamplingParams
from engine.models.decoder import DecoderForCausalLM
from engine.models.loader import MappedWeights, make_model
from engine.runner.cuda_graphs import CudaGraphBackend
from engine.runner.gpu import make_gpu_runner, measure_blocks, warm_up_steps
from engine.runner.kv_cache import count_blocks, has_fixed_size
from engine.runner.load_plan import LoadPlan, make_info, make_plan
from engine.runner.memory import CudaMemory, out_of_memory_while_loading
from engine.runner.model_runner import ModelRunner
from engine.sampling.device import DeviceSampler
from engine.sampling.sampler import Sampler
from engine.step import Progress, RunnerInfo, StepInput, StepRow

logger = logging.getLogger(__name__)

LOADED_PERCENT, WARM_UP_PERCENT = 80.0, 92.0  # where the phases end


def load_runner(config: EngineConfig, progress: Progress, implementation: str | None) -> ModelRunner:
    """See `engine.runner.make_runner`."""
    progress("loading weights", 0.0)
    weights = MappedWeights(
        config.model_path / "model.safetensors", lambda share: progress("loading weights", LOADED_PERCENT * share)
    )
    plan = make_plan(config, weights.dtype, implementation)
    set_num_threads(plan.ops.implementation, config.num_threads)
    # Fails before the weights are touched where the cache would be too small; a GPU's is measured after them.
    is_measured = plan.is_gpu and not has_fixed_size(config)
    num_blocks = 0 if is_measured else count_blocks(config, plan.block_bytes, plan.max_model_len)
    with out_of_memory_while_loading(config):
        with torch.inference_mode():
            model = make_model(plan.model, Build(plan.ops, weights, plan.dtype, plan.device), plan.max_model_len)
            progress("allocating kv cache", LOADED_PERCENT)
            if is_measured:
                num_blocks = measure_blocks(plan, model, CudaMemory(plan.device))
        runner = make_model_runner(plan, model, num_blocks, progress)
        progress("warming up", WARM_UP_PERCENT)
        warm_up(runner)
        for step in warm_up_steps(plan) if plan.is_gpu else ():
            runner.execute(step)
    _log(plan, runner.info)
    return runner


def make_model_runner(plan: LoadPlan, model: DecoderForCausalLM, num_blocks: int, progress: Progress) -> ModelRunner:
    """The runner over a KV cache of this size."""
    if plan.is_gpu:
        return make_gpu_runner(plan, model, num_blocks, progress, CudaGraphBackend())
    info = make_info(plan, num_blocks)
    sampler = Sampler(info.eos_token_ids)
    if plan.sampling_implementation == "cuda":  # kernels interpreted on a CPU
        sampler = DeviceSampler(info.eos_token_ids)
    return ModelRunner(model, plan.make_kv_cache(num_blocks), info, plan.device, sampler=sampler)


def warm_up(runner: ModelRunner) -> None:
    """One token through everything, so that the first request doesn't pay for lazy set-up. Writes KV slot 0."""
    sampling = SamplingParams(max_tokens=1, seed=0, temperature=1.0)
    row = StepRow("warm-up", [0], [], 0, 1, [0], sampling, samples=True)
    runner.execute(StepInput([row]))


def _log(plan: LoadPlan, info: RunnerInfo) -> None:
    logger.info(
        "model loaded architecture=%s ops=%s device=%s dtype=%s max_model_len=%d num_blocks=%d kv_cache_bytes=%d",
        plan.model.architecture,
        plan.ops.implementation,
        info.device,
        info.dtype,
        info.max_model_len,
        info.num_blocks,
        info.num_blocks * plan.block_bytes,
    )
