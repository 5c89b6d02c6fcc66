"""Owns model, KV tensors and sampler. `make_runner` is all that the rest of the engine knows; it brings torch in."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.runner.loading import load_runner
from engine.step import Progress, Runner


def make_runner(config: EngineConfig, progress: Progress | None = None, implementation: str | None = None) -> Runner:
    """Load the baked model and make it ready to execute steps. Raises ConfigError where it cannot be served.

    `implementation` names the ops to use ("reference", "cpu", "cuda"); None takes the best that the device has.
    """
    return load_runner(config, progress or (lambda phase, percent: None), implementation)
