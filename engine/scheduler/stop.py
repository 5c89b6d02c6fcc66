"""When a request is done, as far as token ids tell. Stop strings are found by whoever makes text of them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.grammar.state import GrammarState
from engine.request import Request


@dataclass(frozen=True, slots=True)
class StopRule:
    """EOS, then stop token ids, then the grammar's end, then length. Before `min_tokens` only the last two count.

    Where a grammar does not allow an end yet, a stop token is a token like any other.
    """

    eos_token_ids: frozenset[int]
    max_model_len: int

    def apply(self, request: Request) -> bool:
        """Finish the request if its last output token ends it."""
        if request.grammar is not None and self._stops_by_grammar(request, request.grammar):
            return True
        return self._stops_by_token(request) or self._stops_by_length(request)

    def is_certain(self, request: Request) -> bool:
        """Whether the request ends with the tokens that it awaits, whatever they are."""
        num_output_tokens = request.num_output_tokens + request.num_awaited_tokens
        return num_output_tokens >= request.sampling.max_tokens or request.num_tokens_ahead >= self.max_model_len

    def _stops_by_grammar(self, request: Request, grammar: GrammarState) -> bool:
        if grammar.error is not None:
            request.finish("error")
        elif grammar.is_complete and grammar.ends_in_text:
            request.finish("stop")
            request.ends_in_text = True
        elif grammar.is_complete and not self._stops_by_token(request):  # an EOS before min_tokens, or ignored
            request.finish("stop")
        return request.is_finished

    def _stops_by_token(self, request: Request) -> bool:
        sampling = request.sampling
        if request.grammar is not None and not request.grammar.may_stop:
            return False
        if request.num_output_tokens < sampling.min_tokens:
            return False
        token_id = request.output_token_ids[-1]
        if token_id in self.eos_token_ids and not sampling.ignore_eos:
            request.finish("stop")
            return True
        if token_id in request.stop_token_ids:
            request.finish("stop", stop_reason=token_id)
            return True
        return False

    def _stops_by_length(self, request: Request) -> bool:
        num_output_tokens = request.num_output_tokens
        is_over = num_output_tokens >= request.sampling.max_tokens
        if is_over or request.num_prompt_tokens + num_output_tokens >= self.max_model_len:
            request.finish("length")
            return True
        return False
