"""A machine in made-up time: how long it takes for a step, and the clock that says so."""

from __future__ import annotations

from engine.step import RunnerInfo, StepInput, StepOutput
from tests.unit.engine.chain_runner import ChainRunner

CONTEXT_COST = 1 / 3000


class Machine:
    """How long it takes for a step; the clock that says so."""

    def __init__(self, fixed_s: float = 0.003, row_s: float = 0.0012, token_s: float = 0.0008) -> None:
        self.fixed_s, self.row_s, self.token_s = fixed_s, row_s, token_s
        self.slowness = 1.0
        self.now_s = 0.0
        self.steps_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def compute(self, step: StepInput) -> None:
        seconds = self.fixed_s
        for row in step.rows:
            work = row.num_scheduled_tokens * (1 + CONTEXT_COST * row.num_computed_tokens)
            seconds += self.row_s * row.num_scheduled_tokens if row.is_decoding else self.token_s * work
        self.steps_s.append(seconds * self.slowness)
        self.now_s += seconds * self.slowness


class TimedRunner(ChainRunner):
    """A step takes as long as the machine says."""

    def __init__(self, info: RunnerInfo, machine: Machine) -> None:
        super().__init__(info)
        self.machine = machine

    def execute(self, step: StepInput) -> StepOutput:
        self.machine.compute(step)
        return super().execute(step)
