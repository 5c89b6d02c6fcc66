"""An engine without its socket: one loaded runner, a fresh scheduler for each run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, RequestOutput, SamplingParams, merge_outputs
from engine.runner import make_runner
from engine.runner.model_runner import ModelRunner
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

SAMPLING = SamplingParams(max_tokens=1, seed=0)


@dataclass
class WatchedRunner:
    """A runner that pretends to have fewer blocks and notes which requests fell back to an earlier token."""

    runner: ModelRunner
    info: RunnerInfo
    preempted: set[str] = field(default_factory=set)
    _computed: dict[str, int] = field(default_factory=dict)

    def execute(self, step: StepInput) -> StepOutput:
        for row in step.rows:
            if row.num_computed_tokens < self._computed.get(row.request_id, 0):
                self.preempted.add(row.request_id)
            self._computed[row.request_id] = row.num_computed_tokens + row.num_scheduled_tokens
        return self.runner.execute(step)


class Engine:
    """A loaded model. `start` gives it a scheduler; the KV cache's bytes stay, its contents are forgotten."""

    def __init__(self, baked: Path, implementation: str = "reference", **config: Any) -> None:
        defaults: dict[str, Any] = {"num_threads": 1, "num_gpu_blocks_override": 512, "device": "cpu"}
        self.config = EngineConfig(model_path=baked, socket_path=Path("unused"), **(defaults | config))
        runner = make_runner(self.config, implementation=implementation)
        assert isinstance(runner, ModelRunner)
        self.runner = runner

    def start(self, num_blocks: int | None = None, **config: Any) -> Run:
        """A fresh run; `num_blocks` fewer than there are force preemption."""
        info = dataclasses.replace(self.runner.info, num_blocks=num_blocks or self.runner.info.num_blocks)
        return Run(WatchedRunner(self.runner, info), dataclasses.replace(self.config, **config))

    def logits(self, token_ids: list[int], cuts: Sequence[int] = ()) -> Tensor:
        """Logits of every token [n, vocab], computed in chunks that end at `cuts`."""
        table, chunks, start = list(range(-(-len(token_ids) // 16))), [], 0
        for end in [*cuts, len(token_ids)]:
            row = StepRow("logits", token_ids, [], start, end - start, table, SAMPLING, end == len(token_ids))
            chunks.append(self.runner.compute_logits(StepInput([row])))
            start = end
        return torch.cat(chunks)


class Run:
    """One scheduler's life."""

    def __init__(self, runner: WatchedRunner, config: EngineConfig) -> None:
        self.preempted = runner.preempted
        self._core = EngineCore(config, runner)

    def generate(self, requests: Sequence[GenerateRequest]) -> dict[str, RequestOutput]:
        """Run all to their end; merged outputs by request id."""
        return run_to_end(self._core, requests)

    def close(self) -> None:
        """End the thread that it may have started."""
        self._core.close()


def run_to_end(core: EngineCore, requests: Sequence[GenerateRequest]) -> dict[str, RequestOutput]:
    """Add all and step until they are done; merged outputs by request id."""
    for request in requests:
        refused = core.add(request)
        assert refused is None, refused
    merged: dict[str, RequestOutput] = {}
    while core.has_work():
        for output in core.step():
            if output.request_id in merged:
                merge_outputs(merged[output.request_id], output)
            else:
                merged[output.request_id] = output
    return merged


def make_request(request_id: str, prompt: list[int], resumed: Sequence[int] = (), **sampling: Any) -> GenerateRequest:
    """Greedy and without EOS, unless told otherwise."""
    defaults: dict[str, Any] = {"max_tokens": 32, "seed": 0, "temperature": 0.0, "ignore_eos": True}
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        resumed_token_ids=list(resumed),
        sampling=SamplingParams(**(defaults | sampling)),
    )


def make_prompts(count: int, vocab_size: int, seed: int = 0, longest: int = 90) -> list[list[int]]:
    """Random prompts of 1 … `longest` tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
