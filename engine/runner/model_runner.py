"""Executes one step: inputs → forward pass, on all ranks → logits of the rows that want them → sampler, here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.messages import TokenLogprobs
from engine.runner.forward_pass import ForwardPass, Logits, Work
from engine.runner.inputs import DecodeArrays, IntArray, StepArrays, make_arrays
from engine.runner.parallel.ranks import Ranks
from engine.sampling.drafts import sample_rows, take_likeliest
from engine.sampling.logprobs import make_token_logprobs
from engine.sampling.sampler import Sampled, Sampler, is_plain
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

_NO_ROWS = np.zeros(0, dtype=np.int64)


class ModelRunner:
    """The `Runner`, in rank 0 where there are several."""

    def __init__(
        self, forward: ForwardPass, info: RunnerInfo, *, sampler: Sampler | None = None, ranks: Ranks | None = None
    ) -> None:
        self.info = info
        self._forward = forward
        self._sampler = sampler or Sampler(info.eos_token_ids)
        self._ranks = ranks or Ranks()
        self._decode_arrays = DecodeArrays(info.block_size)

    def execute(self, step: StepInput) -> StepOutput:
        """Run the step; see `StepOutput`. A rank that is lost is the error that names it."""
        with self._ranks.explaining(), self._forward.guarded():
            return self._execute(step)

    @torch.inference_mode()
    def compute_logits(self, step: StepInput) -> Tensor:
        """Run the step and return the logits of every token of it, float32 [T, vocab]."""
        arrays = make_arrays(step, self.info.block_size)
        arrays = dataclasses.replace(arrays, sample_rows=np.arange(len(arrays.token_ids)))
        logits = self._run(Work(arrays, _NO_ROWS)).sampled
        assert logits is not None
        return logits

    def on_fault(self, report: Callable[[EngineError], None]) -> None:
        """Have `report` called, in another thread, when a rank is lost."""
        self._ranks.on_fault(report)

    def close(self) -> None:
        """End the other ranks; no step can be executed any more."""
        self._ranks.close()

    def _execute(self, step: StepInput) -> StepOutput:
        arrays = self._make_arrays(step)
        sampling = [row for row in step.rows if row.samples]
        targets, prompt_rows = _find_targets(step.rows, arrays.query_start_loc)
        work = Work(arrays, prompt_rows, all(map(is_plain, sampling)))
        likeliest = self._forward.pick_likeliest(work)
        if likeliest is not None:
            return StepOutput([[one] for one in likeliest], [None] * len(likeliest), [None] * len(likeliest))
        return self._run_and_sample(step, sampling, targets, work)

    @torch.inference_mode()
    def _run_and_sample(
        self, step: StepInput, sampling: list[StepRow], targets: list[list[int]], work: Work
    ) -> StepOutput:
        logits = self._run(work)
        sampled = iter(self._sample(sampling, logits))
        drawn = [next(sampled) if row.samples else [] for row in step.rows]
        return StepOutput(
            token_ids=[[one.token_id for one in some] for some in drawn],
            logprobs=[_drawn_logprobs(some) for some in drawn],
            prompt_logprobs=_prompt_logprobs(step.rows, targets, logits.prompt),
        )

    def _make_arrays(self, step: StepInput) -> StepArrays:
        if self._forward.is_native and self._decode_arrays.holds(step):
            return self._decode_arrays.make(step)
        return make_arrays(step, self.info.block_size)

    def _run(self, work: Work) -> Logits:
        self._ranks.send(work)
        return self._forward.run(work)

    def _sample(self, rows: list[StepRow], logits: Logits) -> list[list[Sampled]]:
        if logits.likeliest is not None:
            return take_likeliest(logits.likeliest, rows)
        return [] if logits.sampled is None else sample_rows(self._sampler, logits.sampled, rows)


def _drawn_logprobs(drawn: list[Sampled]) -> list[TokenLogprobs] | None:
    return [one.logprobs for one in drawn if one.logprobs is not None] or None


def _find_targets(rows: list[StepRow], query_start_loc: IntArray) -> tuple[list[list[int]], npt.NDArray[np.int64]]:
    """For prompt logprobs: the tokens that each row's chunk predicts, and the tokens of the step that do so."""
    if not any(row.wants_prompt_logprobs for row in rows):
        return [], _NO_ROWS
    targets = [_prompt_targets(row) if row.wants_prompt_logprobs else [] for row in rows]
    starts = query_start_loc[:-1].tolist()
    spans = [np.arange(start, start + len(some)) for start, some in zip(starts, targets, strict=True) if some]
    return targets, np.concatenate([_NO_ROWS, *spans])


def _prompt_targets(row: StepRow) -> list[int]:
    """Token i of the chunk predicts prompt token i + 1, where there is one."""
    first = row.num_computed_tokens + 1
    return row.prompt_token_ids[first : first + row.num_scheduled_tokens]


def _prompt_logprobs(
    rows: list[StepRow], targets: list[list[int]], logits: Iterator[Tensor]
) -> list[list[TokenLogprobs] | None]:
    found: list[list[TokenLogprobs] | None] = [None] * len(rows)
    for index, some in enumerate(targets):
        if rows[index].wants_prompt_logprobs:
            count = rows[index].sampling.prompt_logprobs or 0
            found[index] = [make_token_logprobs(next(logits), target, count) for target in some]
    return found
