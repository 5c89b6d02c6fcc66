"""From a configuration to a runner: other ranks, weights, KV cache, a warm-up; progress is told on the way."""

from __future__ import annotations

import logging

from engine.config import EngineConfig
from engine.messages import SamplingParams
from engine.runner.forward_pass import ForwardPass
from engine.runner.gpu import warm_up_steps
from engine.runner.load_plan import LoadPlan, make_info
from engine.runner.memory import out_of_memory_while_loading
from engine.runner.model_loading import LOADED_PERCENT, ModelLoading
from engine.runner.model_runner import ModelRunner
from engine.runner.parallel.ranks import Ranks
from engine.runner.queueing_runner import QueueingRunner
from engine.sampling.device import DeviceSampler
from engine.sampling.sampler import Sampler
from engine.step import Progress, RunnerInfo, StepInput, StepRow

logger = logging.getLogger(__name__)

WARM_UP_PERCENT = 92.0  # where it begins


def load_runner(config: EngineConfig, progress: Progress, implementation: str | None) -> ModelRunner:
    """See `engine.runner.make_runner`."""
    ranks = Ranks()
    try:
        with ranks.explaining():
            return _load(config, ranks.watched(progress), implementation, ranks)
    except BaseException:
        ranks.close(patience_s=0.0)
        raise


def _load(config: EngineConfig, progress: Progress, implementation: str | None, ranks: Ranks) -> ModelRunner:
    loading = ModelLoading(config, progress, implementation)
    plan = loading.plan
    ranks.start(config, implementation)
    model = loading.load_model(ranks.join(plan))
    progress("allocating kv cache", LOADED_PERCENT)
    num_blocks = ranks.fewest_blocks(lambda: loading.count_blocks(model))
    ranks.allocate(num_blocks)
    runner = make_model_runner(plan, loading.make_forward_pass(model, num_blocks), num_blocks, ranks)
    ranks.wait_ready()
    progress("warming up", WARM_UP_PERCENT)
    with out_of_memory_while_loading(config):
        warm_up(runner)
        for step in warm_up_steps(plan) if plan.is_gpu else ():
            runner.execute(step)
    _log(plan, runner.info)
    return runner


def make_model_runner(plan: LoadPlan, forward: ForwardPass, num_blocks: int, ranks: Ranks | None = None) -> ModelRunner:
    """The runner, with the sampler that goes with the device and the ops."""
    info = make_info(plan, num_blocks)
    sampler = Sampler(info.eos_token_ids)
    if plan.is_gpu or plan.sampling_implementation != "reference":
        sampler = DeviceSampler(info.eos_token_ids, plan.sampling_implementation)
        if plan.is_gpu and plan.config.async_scheduling:
            return QueueingRunner(forward, info, sampler)
    return ModelRunner(forward, info, sampler=sampler, ranks=ranks)


def warm_up(runner: ModelRunner) -> None:
    """One token through everything, so that the first request doesn't pay for lazy set-up. Writes KV slot 0."""
    sampling = SamplingParams(max_tokens=1, seed=0, temperature=1.0)
    row = StepRow("warm-up", [0], [], 0, 1, [0], sampling, samples=True)
    runner.execute(StepInput([row]))


def _log(plan: LoadPlan, info: RunnerInfo) -> None:
    logger.info(
        "model loaded architecture=%s ops=%s device=%s ranks=%d dtype=%s max_model_len=%d num_blocks=%d "
        "kv_cache_bytes=%d",
        plan.model.architecture,
        plan.ops.implementation,
        info.device,
        plan.config.tensor_parallel_size,
        info.dtype,
        info.max_model_len,
        info.num_blocks,
        info.num_blocks * plan.block_bytes,
    )
