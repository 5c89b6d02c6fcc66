"""Steps on a GPU with async scheduling: queued on the device, which takes awaited tokens from the step before itself.

The ids that a step draws stay on the device for the next one; a copy comes back for whoever waits. A step whose rows
ask for more than a token (logprobs, penalties, masks) needs the host: it is computed when it is waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.awaited_tokens import AwaitedTokens, detach
from engine.runner.forward_pass import ForwardPass, Work
from engine.runner.inputs import FillTokens, IntArray, make_arrays
from engine.runner.model_runner import ModelRunner
from engine.sampling.device import DeviceSampler, to_device
from engine.sampling.sampler import is_bare
from engine.step import RunnerInfo, StepInput, StepOutput

Wait = Callable[[], StepOutput]
_NO_ROWS = np.zeros(0, dtype=np.int64)


class QueueingRunner(ModelRunner):
    """`TakesStepsAhead`, alone: there are no other ranks."""

    def __init__(self, forward: ForwardPass, info: RunnerInfo, sampler: DeviceSampler) -> None:
        super().__init__(forward, info, sampler=sampler)
        self._device_sampler = sampler
        self._awaited = AwaitedTokens()
        self._postponed: Wait | None = None
        self._drawn: tuple[Tensor, dict[str, int]] | None = None  # by the step queued last, and where a request's is

    def submit(self, step: StepInput) -> Wait:
        """See `TakesStepsAhead`."""
        if self._postponed is not None:
            # All before it was waited for, and this one comes after it.
            self._postponed()
            self._postponed = None
        if not _can_queue(step):
            self._postponed = functools.cache(functools.partial(self._compute, detach(step)))
            return self._postponed
        if self._drawn is None:
            step = detach(step)
            self._awaited.fill(step)
        with self._forward.guarded():
            return self._queue(step)

    def _compute(self, step: StepInput) -> StepOutput:
        self._drawn = None
        self._awaited.fill(step)
        output = self.execute(step)
        self._awaited.take(step, output)
        return output

    @torch.inference_mode()
    def _queue(self, step: StepInput) -> Wait:
        rows = [row for row in step.rows if row.samples]
        arrays = make_arrays(step, self.info.block_size)
        logits = self._forward.run(Work(arrays, _NO_ROWS), self._make_fill(step, arrays.query_start_loc)).sampled
        if logits is None:
            self._drawn = None
            return functools.partial(self._finish, step, None)
        drawn = self._device_sampler.draw(logits, rows)
        self._drawn = drawn, {row.request_id: index for index, row in enumerate(rows)}
        return functools.partial(self._finish, step, _HostCopy(drawn))

    def _make_fill(self, step: StepInput, query_start_loc: IntArray) -> FillTokens | None:
        """What puts tokens that the step before has drawn among this one's."""
        awaiting = [index for index, row in enumerate(step.rows) if row.awaits_token]
        if not awaiting or self._drawn is None:
            return None
        drawn, places = self._drawn
        sources = [places[step.rows[index].request_id] for index in awaiting]
        targets, sources_ = to_device(np.array([query_start_loc[awaiting], sources], dtype=np.int64), drawn.device)
        return lambda token_ids: token_ids.index_copy_(0, targets, drawn[sources_].to(token_ids.dtype))

    def _finish(self, step: StepInput, drawn: _HostCopy | None) -> StepOutput:
        token_ids = iter(drawn.wait() if drawn is not None else ())
        output = StepOutput([[next(token_ids)] if row.samples else [] for row in step.rows])
        self._awaited.take(step, output)
        return output


def _can_queue(step: StepInput) -> bool:
    """Whether nothing of the step needs the host."""
    return not any(row.wants_prompt_logprobs or (row.samples and not is_bare(row)) for row in step.rows)


class _HostCopy:
    """Of token ids on the device, on its way."""

    def __init__(self, token_ids: Tensor) -> None:
        is_gpu = token_ids.device.type == "cuda"
        self._host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=is_gpu)
        self._host.copy_(token_ids, non_blocking=is_gpu)
        self._event = torch.cuda.Event() if is_gpu else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record()

    def wait(self) -> list[int]:
        if self._event is not None:
            self._event.synchronize()
        token_ids: list[int] = self._host.tolist()
        return token_ids
