"""Owns model, KV tensors and sampler. `make_runner` is all that the rest of the engine knows; it brings torch in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.step import Progress, Runner


def make_runner(config: EngineConfig, progress: Progress | None = None, implementation: str | None = None) -> Runner:
    """Load the baked model and make it ready to execute steps. Raises ConfigError where it cannot be served.

    `implementation` names the ops to use ("reference", "cpu", "cuda", "cuda-invariant"); None takes the best that the
    device has.
    """
    # Parts of this package (its graphs, say) are of use where there are no messages; they must not bring these in.
    from engine.runner.loading import load_runner

    return load_runner(config, progress or (lambda phase, percent: None), implementation)
