"""From a configuration to a loaded model and its KV cache, in the steps that every rank takes side by side."""

from __future__ import annotations

import os

import torch

from engine.config import EngineConfig
from engine.kernels import set_num_threads
from engine.layers.build import Build
from engine.layers.group import Group
from engine.models.decoder import DecoderForCausalLM
from engine.models.loader import MappedWeights, make_model
from engine.runner.cuda_graphs import CudaGraphBackend
from engine.runner.forward_pass import ForwardPass
from engine.runner.gpu import make_gpu_forward_pass, measure_blocks
from engine.runner.kv_cache import count_blocks, has_fixed_size
from engine.runner.load_plan import make_plan
from engine.runner.memory import CudaMemory, out_of_memory_while_loading
from engine.runner.weight_memory import read_into_huge_pages
from engine.step import Progress

LOADED_PERCENT = 80.0  # where the phase ends


class ModelLoading:
    """Made before the weights are touched; raises ConfigError where it can be seen already that they are in vain."""

    def __init__(self, config: EngineConfig, progress: Progress, implementation: str | None, rank: int = 0) -> None:
        progress("loading weights", 0.0)
        self._config, self._progress = config, progress
        self._weights = MappedWeights(
            config.model_path / "model.safetensors", lambda share: progress("loading weights", LOADED_PERCENT * share)
        )
        self.plan = plan = make_plan(
            config, self._weights.dtype, implementation, rank, has_packed_weights=self._weights.is_packed
        )
        set_num_threads(plan.ops.implementation, _threads_of_a_rank(config))
        # A GPU's is measured beside the weights.
        self._is_measured = plan.is_gpu and not has_fixed_size(config)
        self._num_blocks = 0 if self._is_measured else count_blocks(config, plan.block_bytes, plan.max_model_len)

    def load_model(self, group: Group) -> DecoderForCausalLM:
        """This rank's part of the model."""
        plan = self.plan
        if plan.ops.implementation == "cpu" and group.size == 1:
            read_into_huge_pages(self._weights, self._num_blocks * plan.block_bytes)
        with out_of_memory_while_loading(self._config), torch.inference_mode():
            build = Build(plan.ops, self._weights, plan.dtype, plan.device, group)
            return make_model(plan.model, build, plan.max_model_len)

    def count_blocks(self, model: DecoderForCausalLM) -> int:
        """The KV blocks that there is room for beside it. On a GPU a step is run by all ranks together."""
        if not self._is_measured:
            return self._num_blocks
        with out_of_memory_while_loading(self._config), torch.inference_mode():
            return measure_blocks(self.plan, model, CudaMemory(self.plan.device))

    def make_forward_pass(self, model: DecoderForCausalLM, num_blocks: int) -> ForwardPass:
        """With a KV cache of so many blocks, and with graphs, which all ranks capture together."""
        plan = self.plan
        with out_of_memory_while_loading(self._config):
            if plan.is_gpu:
                return make_gpu_forward_pass(plan, model, num_blocks, self._progress, CudaGraphBackend())
            return ForwardPass(model, plan.make_kv_cache(num_blocks), plan.config.block_size, plan.device)


def _threads_of_a_rank(config: EngineConfig) -> int | None:
    """None: as many as there are cores."""
    if config.num_threads is not None or config.tensor_parallel_size == 1:
        return config.num_threads
    return max(1, len(os.sched_getaffinity(0)) // config.tensor_parallel_size)
