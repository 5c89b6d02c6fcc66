"""One forward pass: inputs → hidden states → logits of the tokens that want them. What every rank does of a step.

Under tensor parallelism each rank runs the same `Work` over its part of the model; only rank 0 looks at the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels import KVLayer
from engine.runner.cuda_graphs import DecodeGraphs
from engine.runner.inputs import FillTokens, ModelInputs, StepArrays, place_inputs
from engine.runner.memory import out_of_memory_while_serving
from engine.runner.staging import Staging

if TYPE_CHECKING:
    from engine.models.decoder import DecoderForCausalLM
    from engine.runner.native_step import NativeStep

LOGITS_AT_ONCE = 64  # rows of prompt logprobs; bounds their memory at a large vocabulary


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes."""

    arrays: StepArrays
    prompt_rows: npt.NDArray[np.int64]  # tokens whose logits are wanted beside those that sample, for prompt logprobs
    is_plain: bool = False  # of those that sample only the likeliest token is wanted; other ranks need not know


class Logits(NamedTuple):
    """What came out."""

    sampled: Tensor | None  # float32 [n, vocab] of arrays.sample_rows; None where there are none, or they are plain
    prompt: Iterator[Tensor]  # float32 [vocab] of each of prompt_rows, computed some at a time
    likeliest: list[int] | None = None  # tokens of arrays.sample_rows where they are plain


@dataclass(frozen=True, slots=True)
class GpuParts:
    """What a forward pass has only on a GPU."""

    staging: Staging
    graphs: DecodeGraphs | None  # None: every step is launched kernel by kernel
    gpu_memory_utilization: float


class ForwardPass:
    """Owns the KV tensors of this rank."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        kv_cache: list[KVLayer],
        block_size: int,
        device: torch.device,
        gpu: GpuParts | None = None,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._block_size = block_size
        self._device = device
        self._gpu = gpu
        self._native = _make_native_step(model, kv_cache, block_size)

    @property
    def is_native(self) -> bool:
        """Whether decode steps are best told by arrays that are used again: see `engine.runner.native_step`."""
        return self._native is not None

    def pick_likeliest(self, work: Work) -> list[int] | None:
        """What `run` finds for plain rows, where that takes no tensors, and so no inference mode; else None."""
        if self._native is None or not work.is_plain or not _is_bare_decode(work):
            return None
        return self._native.pick_likeliest(work.arrays)

    def run(self, work: Work, fill: FillTokens | None = None) -> Logits:
        """Fill the KV cache and compute logits; to be called, and its result used, in inference mode."""
        graphs = None if self._gpu is None else self._gpu.graphs
        if graphs is not None and graphs.holds(work.arrays) and not len(work.prompt_rows):
            return Logits(graphs.replay(work.arrays, fill), iter(()))
        if self._native is not None and _is_bare_decode(work):
            return Logits(self._native.compute_logits(work.arrays), iter(()))
        inputs = self._make_inputs(work)
        if fill is not None:
            fill(inputs.token_ids)
        x = self._model.forward(inputs.token_ids, inputs.batch, self._kv_cache)
        wants_logits = inputs.sample_rows.shape[0] > 0
        if wants_logits and work.is_plain:
            likeliest = self._model.pick_likeliest(x, inputs.sample_rows)
            return Logits(None, self._prompt_logits(x, work.prompt_rows), likeliest)
        sampled = self._model.compute_logits(x, inputs.sample_rows) if wants_logits else None
        return Logits(sampled, self._prompt_logits(x, work.prompt_rows))

    @torch.inference_mode()
    def follow(self, work: Work) -> None:
        """Do another rank's part of what `run` does, and let its user have the logits."""
        with self.guarded():
            for _ in self.run(work).prompt:
                pass

    def guarded(self) -> AbstractContextManager[None]:
        """Turns running out of memory into an error that names the number to change."""
        return nullcontext() if self._gpu is None else out_of_memory_while_serving(self._gpu.gpu_memory_utilization)

    def _make_inputs(self, work: Work) -> ModelInputs:
        if self._gpu is None:
            only_sampled = not len(work.prompt_rows)
            return place_inputs(work.arrays, self._block_size, self._device, only_sampled=only_sampled)
        return self._gpu.staging.make_inputs(work.arrays, self._block_size)

    def _prompt_logits(self, x: Tensor, rows: npt.NDArray[np.int64]) -> Iterator[Tensor]:
        for start in range(0, len(rows), LOGITS_AT_ONCE):
            some = torch.from_numpy(rows[start : start + LOGITS_AT_ONCE]).to(self._device)
            yield from self._model.compute_logits(x, some)


def _is_bare_decode(work: Work) -> bool:
    return work.arrays.is_decode and not len(work.prompt_rows)


def _make_native_step(model: DecoderForCausalLM, kv_cache: list[KVLayer], block_size: int) -> NativeStep | None:
    parts = model.native_parts
    if parts is None:
        return None
    from engine.runner.native_step import NativeStep  # the library is only for CPUs

    return NativeStep(parts, kv_cache, block_size)
