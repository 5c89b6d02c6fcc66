"""Cores whose drafts are as right or wrong as a test wants: the chain's own continuation, spoilt at some places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config import SpeculationConfig
from engine.core import EngineCore
from engine.request import Request
from engine.speculation.speculator import Speculator
from tests.unit.engine.builders import make_core
from tests.unit.engine.chain_runner import generate

Spoil = Callable[[int], bool]  # number of the output token → whether the draft is wrong there


class Oracle(Speculator):
    """Knows what the chain runner will say."""

    def __init__(self, config: SpeculationConfig, vocab_size: int, spoil: Spoil) -> None:
        super().__init__(config)
        self._vocab_size = vocab_size
        self._spoil = spoil

    def propose(self, request: Request, max_tokens: int, relative_cost: float) -> list[int]:
        count = min(max_tokens, self._config.num_speculative_tokens)
        if count <= 0:
            return []
        right = generate(request.prompt_token_ids + request.output_token_ids, count, self._vocab_size)
        first = request.num_output_tokens
        return [(token_id + self._spoil(first + index)) % self._vocab_size for index, token_id in enumerate(right)]


def make_drafting_core(num_draft_tokens: int = 4, spoil: Spoil = lambda number: False, **knobs: Any) -> EngineCore:
    """A core with an `Oracle`; `knobs` are those of `make_core`."""
    config = SpeculationConfig(num_speculative_tokens=num_draft_tokens, adaptive=False)
    core = make_core(speculation=config, **knobs)
    assert core._scheduler._drafts is not None
    core._scheduler._drafts.speculator = Oracle(config, core.info.vocab_size, spoil)
    return core
