"""A real engine process around a runner without a model: ``python -m tests.unit.engine_process SOCKET [options]``.

The runner counts: the token after t is t + 1, modulo the vocabulary.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.server import serve
from engine.step import Progress, RunnerInfo, StepInput, StepOutput, StepRow

VOCAB_SIZE = 1000
POISON_TOKEN = 666  # a prompt that begins with it makes the step fail

INFO = RunnerInfo(
    num_blocks=4096,
    block_size=16,
    max_model_len=32768,
    vocab_size=VOCAB_SIZE,
    eos_token_ids=frozenset(),
    dtype="float32",
    device="fake",
)


class CountingRunner:
    """A `Runner`. ``step_s`` is how long a step takes; ``gate`` is acquired once a step."""

    def __init__(self, step_s: float = 0.0, gate: threading.Semaphore | None = None) -> None:
        self.info = INFO
        self._step_s = step_s
        self._gate = gate

    def execute(self, step: StepInput) -> StepOutput:
        if any(row.prompt_token_ids[0] == POISON_TOKEN for row in step.rows):
            raise ValueError("poisoned")
        if self._gate is not None:
            self._gate.acquire()
        if self._step_s:
            time.sleep(self._step_s)
        token_ids = [_next(row) if row.samples else [] for row in step.rows]
        return StepOutput(token_ids, [None] * len(token_ids), [None] * len(token_ids))


def _next(row: StepRow) -> list[int]:
    tokens = row.output_token_ids or row.prompt_token_ids
    return [(tokens[-1] + 1) % VOCAB_SIZE]


def make_config(socket_path: Path, **knobs: Any) -> EngineConfig:
    """The configuration that the tests' engines share."""
    return EngineConfig(model_path=Path("/none"), socket_path=socket_path, **({"max_num_seqs": 256} | knobs))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; ``--gate`` names a FIFO that loading waits for, ``--fail`` ends loading with an error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--fail", choices=("config", "engine", "bug"))
    options = parser.parse_args(argv)

    def make_runner(config: EngineConfig, progress: Progress) -> CountingRunner:
        progress("loading weights", 40.0)
        if options.gate:
            options.gate.read_bytes()
        errors = {"config": ConfigError("no such model"), "engine": EngineError("no memory"), "bug": KeyError("bug")}
        if options.fail:
            raise errors[options.fail]
        return CountingRunner(options.step_s)

    return serve(make_config(options.socket, async_scheduling=options.async_scheduling), make_runner)


if __name__ == "__main__":
    sys.exit(main())
