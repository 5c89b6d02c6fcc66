"""Grammars as the engine core needs them: begun with a request, awaited, masked each step, let go with the request."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.config import EngineConfig
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.masks import MaskMaker
from engine.request import Request
from engine.step import RunnerInfo, StepInput


class RequestGrammars:
    """Knows which requests await their grammar."""

    def __init__(self, config: EngineConfig, info: RunnerInfo) -> None:
        self.compiler = GrammarCompiler(config.model_path / "tokenizer.json", info.vocab_size, info.eos_token_ids)
        self._masks = MaskMaker(info.vocab_size)
        self._pending: dict[str, Request] = {}

    @property
    def num_pending(self) -> int:
        """Requests that await their grammar."""
        return len(self._pending)

    @property
    def pending(self) -> Collection[Request]:
        """The requests that await their grammar."""
        return self._pending.values()

    @property
    def has_finished(self) -> bool:
        """Whether `take_finished` may return something."""
        return self.compiler.has_finished

    def begin(self, request: Request) -> None:
        """Give the request its grammar, at once or later. Raises RequestError for one that is known to be wrong."""
        if request.sampling.grammar is None:
            return
        request.grammar = self.compiler.submit(request.request_id, request.sampling, list(request.output_token_ids))
        if request.grammar is None:
            self._pending[request.request_id] = request

    def discard(self, request_id: str) -> None:
        """The request is over."""
        if self._pending.pop(request_id, None) is not None:
            self.compiler.discard(request_id)

    def take_finished(self) -> list[CompiledGrammar]:
        """What was compiled since the last call, for requests that are still wanted."""
        taken = [item for item in self.compiler.take_finished() if item.request_id in self._pending]
        for item in taken:
            del self._pending[item.request_id]
        return taken

    def add_masks(self, step: StepInput, requests: Sequence[Request]) -> None:
        """Mask the step's rows, which are parallel to `requests`."""
        self._masks.add_masks(step, requests)
