"""An engine process whose model says " red" at a fixed rate: ``python red_engine.py SOCKET SECONDS_A_STEP``."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from engine.server import serve
from engine.step import StepInput, StepOutput
from tests.api.scripted_engine import RED
from tests.unit.engine_process import INFO, make_config

VOCAB_SIZE = 200_000  # so that any model's prompts are taken


class RedRunner:
    """A `Runner` that sleeps instead of computing."""

    def __init__(self, step_s: float) -> None:
        self.info = dataclasses.replace(INFO, vocab_size=VOCAB_SIZE)
        self._step_s = step_s

    def execute(self, step: StepInput) -> StepOutput:
        """One token for each row that samples."""
        time.sleep(self._step_s)
        token_ids = [[RED] if row.samples else [] for row in step.rows]
        return StepOutput(token_ids, [None] * len(token_ids), [None] * len(token_ids))


if __name__ == "__main__":
    runner = RedRunner(float(sys.argv[2]))
    sys.exit(serve(make_config(Path(sys.argv[1])), lambda config, progress: runner))
