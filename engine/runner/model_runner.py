"""Executes one step: inputs → forward pass → logits of the rows that want them → sampler. Owns the KV tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import KVLayer
from engine.messages import TokenLogprobs
from engine.models.decoder import DecoderForCausalLM
from engine.runner.inputs import ModelInputs, make_inputs
from engine.sampling.drafts import sample_rows
from engine.sampling.logprobs import make_token_logprobs
from engine.sampling.sampler import Sampled, Sampler
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

LOGITS_AT_ONCE = 64  # rows of prompt logprobs; bounds their memory at a large vocabulary


class ModelRunner:
    """The `Runner` of a single process."""

    def __init__(
        self, model: DecoderForCausalLM, kv_cache: list[KVLayer], info: RunnerInfo, device: torch.device
    ) -> None:
        self.info = info
        self._model = model
        self._kv_cache = kv_cache
        self._device = device
        self._sampler = Sampler(info.eos_token_ids)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        """Run the step; see `StepOutput`."""
        inputs = make_inputs(step, self.info.block_size, self._device)
        x = self._model.forward(inputs.token_ids, inputs.batch, self._kv_cache)
        sampled = iter(self._sample(x, inputs, step))
        output = StepOutput(token_ids=[])
        bounds = inputs.batch.query_start_loc.tolist()
        for row, start in zip(step.rows, bounds, strict=False):
            drawn = next(sampled) if row.samples else []
            logprobs = [one.logprobs for one in drawn if one.logprobs is not None]
            output.token_ids.append([one.token_id for one in drawn])
            output.logprobs.append(logprobs or None)
            output.prompt_logprobs.append(self._prompt_logprobs(x, row, start) if row.wants_prompt_logprobs else None)
        return output

    @torch.inference_mode()
    def compute_logits(self, step: StepInput) -> Tensor:
        """Run the step and return the logits of every token of it, float32 [T, vocab]."""
        inputs = make_inputs(step, self.info.block_size, self._device)
        x = self._model.forward(inputs.token_ids, inputs.batch, self._kv_cache)
        return self._model.compute_logits(x, torch.arange(x.shape[0], device=self._device))

    def _sample(self, x: Tensor, inputs: ModelInputs, step: StepInput) -> list[list[Sampled]]:
        if inputs.sample_rows.shape[0] == 0:
            return []
        logits = self._model.compute_logits(x, inputs.sample_rows)
        return sample_rows(self._sampler, logits, [row for row in step.rows if row.samples])

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
