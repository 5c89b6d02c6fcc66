"""How long a quiet tenant's requests take beside another's flood, in the made-up time of a small machine."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import pytest

from engine.core import EngineCore
from engine.messages import GenerateRequest, RequestOutput
from engine.step import StepInput, StepOutput
from tests.unit.engine.builders import make_config, make_info, make_message
from tests.unit.engine.machine import CONTEXT_COST, Machine, TimedRunner

QUIET, FLOOD = "quiet", "flood"
PROMPT, NUM_OUTPUT = 110, 32
ROUND_TRIP_S = 0.02  # between an answer's end and the flood's next request


class SevenRunner(TimedRunner):
    """The answer is always 7."""

    def execute(self, step: StepInput) -> StepOutput:
        self.machine.compute(step)
        return StepOutput([[7] if row.samples else [] for row in step.rows])


@dataclass
class Traffic:
    """Clients of two tenants: each of them waits for his answer, then asks again."""

    machine: Machine
    core: EngineCore
    quiet_pause_s: float
    due: list[tuple[float, int, str]] = field(default_factory=list)  # when, ties, who
    begun_s: dict[str, float] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)  # of the quiet one
    num_flood_tokens: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ask(self, when_s: float, tenant: str) -> None:
        heapq.heappush(self.due, (when_s, next(self.numbers), tenant))

    def run(self, num_quiet: int, until_s: float) -> None:
        while len(self.took_s) < num_quiet and self.machine.now_s < until_s:
            while self.due and self.due[0][0] <= self.machine.now_s:
                when_s, _, tenant = heapq.heappop(self.due)
                request = make_message(PROMPT, tenant=tenant, max_tokens=NUM_OUTPUT)
                self._add(request, when_s)
            if self.core.has_work():
                for output in self.core.step():
                    self._take(output)
            else:
                self.machine.now_s = self.due[0][0]

    def _add(self, request: GenerateRequest, when_s: float) -> None:
        assert self.core.add(request) is None
        if request.tenant == QUIET:
            self.begun_s[request.request_id] = when_s

    def _take(self, output: RequestOutput) -> None:
        begun_s = self.begun_s.get(output.request_id)
        if begun_s is None:
            self.num_flood_tokens += len(output.token_ids)
        if output.finish_reason is None:
            return
        if begun_s is None:
            self.ask(self.machine.now_s + ROUND_TRIP_S, FLOOD)
        else:
            self.took_s.append(self.machine.now_s - begun_s)
            self.ask(self.machine.now_s + self.quiet_pause_s, QUIET)


def run_traffic(slowness: float, num_flood: int, num_quiet: int, pause_s: float = 0.01) -> Traffic:
    """From the flood's begin to the end of the quiet tenant's last request, or for half a minute where it has none."""
    machine = Machine(row_s=0.0011)
    machine.slowness = slowness
    info = make_info(num_blocks=4000, block_size=16, max_model_len=2048, context_cost=CONTEXT_COST)
    config = make_config(max_num_batched_tokens=256, fair_step_tokens=4, max_step_ms=200)
    core = EngineCore(config, SevenRunner(info, machine), clock=machine)
    traffic = Traffic(machine, core, pause_s * slowness)
    for number in range(num_flood):
        traffic.ask(number * 0.005, FLOOD)
    if num_quiet:
        traffic.ask(3.0 if num_flood else 0.0, QUIET)
    traffic.run(num_quiet or 1, 1e9 if num_quiet else 30.0)
    return traffic


@pytest.mark.parametrize("slowness", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("pause_s", [0.01, 2.0])
def test_its_requests_take_less_than_three_times_as_long(slowness, pause_s):
    alone = run_traffic(slowness, 0, 5)
    beside = run_traffic(slowness, 64, 25, pause_s)
    assert max(beside.took_s) < 2.7 * max(alone.took_s)


def test_the_flood_loses_little_to_one_who_comes_every_now_and_then():
    by_itself = run_traffic(1.0, 64, 0)
    beside = run_traffic(1.0, 64, 12, pause_s=2.0)
    rates = [traffic.num_flood_tokens / traffic.machine.now_s for traffic in (by_itself, beside)]
    assert rates[1] > 0.8 * rates[0]


@pytest.mark.parametrize("num_others", [1, 2, 8])
@pytest.mark.parametrize("slowness", [1.0, 4.0])
def test_nor_beside_a_few(slowness, num_others):
    """Whose steps a prompt in several pieces must not lose its turn to."""
    alone = run_traffic(slowness, 0, 5)
    beside = run_traffic(slowness, num_others, 25)
    assert max(beside.took_s) < 2.7 * max(alone.took_s)
