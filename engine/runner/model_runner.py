"""Executes one step: inputs → forward pass, on all ranks → logits of the rows that want them → sampler, here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.messages import TokenLogprobs
from engine.runner.forward_pass import ForwardPass, Logits, Work
from engine.runner.inputs import make_arrays
from engine.runner.parallel.ranks import Ranks
from engine.sampling.drafts import sample_rows, take_likeliest
from engine.sampling.logprobs import make_token_logprobs
from engine.sampling.sampler import Sampled, Sampler, is_plain
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow


class ModelRunner:
    """The `Runner`, in rank 0 where there are several."""

    def __init__(
        self, forward: ForwardPass, info: RunnerInfo, *, sampler: Sampler | None = None, ranks: Ranks | None = None
    ) -> None:
        self.info = info
        self._forward = forward
        self._sampler = sampler or Sampler(info.eos_token_ids)
        self._ranks = ranks or Ranks()

    def execute(self, step: StepInput) -> StepOutput:
        """Run the step; see `StepOutput`. A rank that is lost is the error that names it."""
        with self._ranks.explaining(), self._forward.guarded():
            return self._execute(step)

    @torch.inference_mode()
    def compute_logits(self, step: StepInput) -> Tensor:
        """Run the step and return the logits of every token of it, float32 [T, vocab]."""
        arrays = make_arrays(step, self.info.block_size)
        arrays = dataclasses.replace(arrays, sample_rows=np.arange(len(arrays.token_ids)))
        logits = self._run(Work(arrays, np.zeros(0, dtype=np.int64))).sampled
        assert logits is not None
        return logits

    def on_fault(self, report: Callable[[EngineError], None]) -> None:
        """Have `report` called, in another thread, when a rank is lost."""
        self._ranks.on_fault(report)

    def close(self) -> None:
        """End the other ranks; no step can be executed any more."""
        self._ranks.close()

    @torch.inference_mode()
    def _execute(self, step: StepInput) -> StepOutput:
        arrays = make_arrays(step, self.info.block_size)
        targets = [_prompt_targets(row) if row.wants_prompt_logprobs else [] for row in step.rows]
        starts = arrays.query_start_loc[:-1].tolist()
        spans = [np.arange(start, start + len(some)) for start, some in zip(starts, targets, strict=True) if some]
        prompt_rows = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        plain = all(is_plain(row) for row in step.rows if row.samples)
        return self._make_output(step, targets, self._run(Work(arrays, prompt_rows, plain)))

    def _run(self, work: Work) -> Logits:
        self._ranks.send(work)
        return self._forward.run(work)

    def _make_output(self, step: StepInput, targets: list[list[int]], logits: Logits) -> StepOutput:
        sampled = iter(self._sample([row for row in step.rows if row.samples], logits))
        output = StepOutput(token_ids=[])
        for row, wanted in zip(step.rows, targets, strict=True):
            drawn = next(sampled) if row.samples else []
            logprobs = [one.logprobs for one in drawn if one.logprobs is not None]
            output.token_ids.append([one.token_id for one in drawn])
            output.logprobs.append(logprobs or None)
            found = _prompt_logprobs(row, wanted, logits.prompt) if row.wants_prompt_logprobs else None
            output.prompt_logprobs.append(found)
        return output

    def _sample(self, rows: list[StepRow], logits: Logits) -> list[list[Sampled]]:
        if logits.likeliest is not None:
            return take_likeliest(logits.likeliest, rows)
        return [] if logits.sampled is None else sample_rows(self._sampler, logits.sampled, rows)


def _prompt_targets(row: StepRow) -> list[int]:
    """Token i of the chunk predicts prompt token i + 1, where there is one."""
    first = row.num_computed_tokens + 1
    return row.prompt_token_ids[first : first + row.num_scheduled_tokens]


def _prompt_logprobs(row: StepRow, targets: list[int], logits: Iterator[Tensor]) -> list[TokenLogprobs]:
    count = row.sampling.prompt_logprobs or 0
    return [make_token_logprobs(next(logits), target, count) for target in targets]
