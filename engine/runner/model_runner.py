"""Executes one step: inputs → forward pass → logits of the rows that want them → sampler. Owns the KV tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import KVLayer
from engine.messages import TokenLogprobs
from engine.models.decoder import DecoderForCausalLM
from engine.runner.cuda_graphs import DecodeGraphs
from engine.runner.inputs import ModelInputs, StepArrays, make_arrays, place_inputs
from engine.runner.memory import out_of_memory_while_serving
from engine.runner.staging import Staging
from engine.sampling.drafts import sample_rows
from engine.sampling.logprobs import make_token_logprobs
from engine.sampling.sampler import Sampler
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

LOGITS_AT_ONCE = 64  # rows of prompt logprobs; bounds their memory at a large vocabulary


@dataclass(frozen=True, slots=True)
class GpuParts:
    """What a runner has only on a GPU."""

    staging: Staging
    graphs: DecodeGraphs | None  # None: every step is launched kernel by kernel
    gpu_memory_utilization: float


class ModelRunner:
    """The `Runner` of a single process."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        kv_cache: list[KVLayer],
        info: RunnerInfo,
        device: torch.device,
        *,
        sampler: Sampler | None = None,
        gpu: GpuParts | None = None,
    ) -> None:
        self.info = info
        self._model = model
        self._kv_cache = kv_cache
        self._device = device
        self._sampler = sampler or Sampler(info.eos_token_ids)
        self._gpu = gpu

    def execute(self, step: StepInput) -> StepOutput:
        """Run the step; see `StepOutput`."""
        if self._gpu is None:
            return self._execute(step)
        with out_of_memory_while_serving(self._gpu.gpu_memory_utilization):
            return self._execute(step)

    @torch.inference_mode()
    def compute_logits(self, step: StepInput) -> Tensor:
        """Run the step and return the logits of every token of it, float32 [T, vocab]."""
        x, _ = self._forward(make_arrays(step, self.info.block_size))
        return self._model.compute_logits(x, torch.arange(x.shape[0], device=self._device))

    @torch.inference_mode()
    def _execute(self, step: StepInput) -> StepOutput:
        arrays = make_arrays(step, self.info.block_size)
        graphs = None if self._gpu is None else self._gpu.graphs
        if graphs is not None and graphs.holds(arrays) and not any(row.wants_prompt_logprobs for row in step.rows):
            return self._make_output(step, arrays, None, graphs.replay(arrays))
        x, inputs = self._forward(arrays)
        wants_logits = inputs.sample_rows.shape[0] > 0
        logits = self._model.compute_logits(x, inputs.sample_rows) if wants_logits else None
        return self._make_output(step, arrays, x, logits)

    def _forward(self, arrays: StepArrays) -> tuple[Tensor, ModelInputs]:
        inputs = self._make_inputs(arrays)
        return self._model.forward(inputs.token_ids, inputs.batch, self._kv_cache), inputs

    def _make_inputs(self, arrays: StepArrays) -> ModelInputs:
        if self._gpu is None:
            return place_inputs(arrays, self.info.block_size, self._device)
        return self._gpu.staging.make_inputs(arrays, self.info.block_size)

    def _make_output(self, step: StepInput, arrays: StepArrays, x: Tensor | None, logits: Tensor | None) -> StepOutput:
        """x[T, hidden] where there are hidden states, logits where any row samples."""
        rows = [row for row in step.rows if row.samples]
        sampled = iter([] if logits is None else sample_rows(self._sampler, logits, rows))
        output = StepOutput(token_ids=[])
        for row, start in zip(step.rows, arrays.query_start_loc.tolist(), strict=False):
            drawn = next(sampled) if row.samples else []
            logprobs = [one.logprobs for one in drawn if one.logprobs is not None]
            output.token_ids.append([one.token_id for one in drawn])
            output.logprobs.append(logprobs or None)
            wanted = None if x is None or not row.wants_prompt_logprobs else self._prompt_logprobs(x, row, start)
            output.prompt_logprobs.append(wanted)
        return output

    def _prompt_logprobs(self, x: Tensor, row: StepRow, start: int) -> list[TokenLogprobs]:
        """Token i of the chunk predicts prompt token i + 1, where there is one."""
        first = row.num_computed_tokens
        targets = row.prompt_token_ids[first + 1 : first + 1 + row.num_scheduled_tokens]
        count = row.sampling.prompt_logprobs or 0
        found: list[TokenLogprobs] = []
        for offset in range(0, len(targets), LOGITS_AT_ONCE):
            some = targets[offset : offset + LOGITS_AT_ONCE]
            rows = torch.arange(start + offset, start + offset + len(some), device=self._device)
            logits = self._model.compute_logits(x, rows)
            found += [make_token_logprobs(logits[index], target, count) for index, target in enumerate(some)]
        return found
