"""Engine after engine over one journal, each until it fails; the requests are taken up again as API workers do it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine import autopsy
from engine.core import EngineCore
from engine.journal import Journal
from engine.messages import GenerateRequest, RequestOutput
from engine.step import StepInput, StepOutput
from engine.suspects import Suspects
from tests.unit.engine.builders import make_config, make_info
from tests.unit.engine.chain_runner import ChainRunner

INFO = make_info(num_blocks=400, max_model_len=100)


class CrashedError(Exception):
    """What the runner did with this engine."""


class Lives:
    """`kills(row's request id, output tokens)` says whether computing that row makes the engine fail.

    With `killer` an engine is now and then ended from outside, after so many steps as it says.
    """

    def __init__(
        self,
        path: Path,
        requests: Sequence[GenerateRequest],
        kills: Callable[[str, int], bool] = lambda request_id, num_tokens: False,
        killer: Callable[[], int] | None = None,
        **knobs: object,
    ) -> None:
        self.path = path
        self.tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        self.ended: dict[str, RequestOutput] = {}
        self.faults = 0
        self.kills_from_outside = 0
        self.rows: list[list[str]] = []  # of every step that was computed
        self._requests = {request.request_id: request for request in requests}
        self._kills = kills
        self._killer = killer
        self._knobs = knobs

    def run(self, max_lives: int = 100) -> None:
        """Until every request has ended."""
        for _ in range(max_lives):
            if self._live():
                return
        raise AssertionError(f"not done after {max_lives} engines")

    def _live(self) -> bool:
        suspects = Suspects(self.path.with_suffix(".suspects"))
        death = autopsy.examine(self.path)
        if death is not None:
            suspects.take_death(death)
        core = EngineCore(
            make_config(**self._knobs), self._make_runner(), journal=Journal(self.path), suspects=suspects
        )
        for request_id in [name for name in self.tokens if name not in self.ended]:
            self._submit(core, request_id)
        num_steps = self._killer() if self._killer else 10**6
        try:
            while core.has_work() and num_steps:
                self._take(core.step())
                num_steps -= 1
        except CrashedError as error:
            self.faults += 1
            autopsy.leave_note(self.path, str(error))
            return False
        self.kills_from_outside += core.has_work()
        return not core.has_work()

    def _submit(self, core: EngineCore, request_id: str) -> None:
        request = msgspec.structs.replace(
            self._requests[request_id],
            request_id=f"{request_id}#{self.faults}",
            origin_id=request_id,
            resumed_token_ids=list(self.tokens[request_id]),
        )
        refusal = core.add(request)
        if refusal is not None:
            self._take([refusal])

    def _take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            request_id = output.request_id.partition("#")[0]
            self.tokens[request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ended[request_id] = output

    def _make_runner(self) -> ChainRunner:
        lives = self

        class Runner(ChainRunner):
            def execute(self, step: StepInput) -> StepOutput:
                ids = [row.request_id.partition("#")[0] for row in step.rows]
                lives.rows.append(ids)
                if any(lives._kills(name, len(row.output_token_ids)) for name, row in zip(ids, step.rows, strict=True)):
                    raise CrashedError("crashed")
                return super().execute(step)

        return Runner(INFO)


def outside_kills(seed: int, most_steps: int, times: int) -> Callable[[], int]:
    """So many engines are ended from outside, each within its first steps."""
    rng = random.Random(seed)
    left = iter(range(times))
    return lambda: rng.randint(0, most_steps) if next(left, None) is not None else -1
