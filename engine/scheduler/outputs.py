"""What the tokens of one step make of a request: appended, stopped at the right one, put into its output."""

from __future__ import annotations

from engine.grammar.state import GrammarState
from engine.messages import RequestOutput, TokenLogprobs
from engine.request import Request
from engine.scheduler.stop import StopRule

Update = tuple[Request, RequestOutput]
"""What a step produced for a request, beside the request itself."""


def take_tokens(
    request: Request, token_ids: list[int], logprobs: list[TokenLogprobs] | None, stop_rule: StopRule
) -> RequestOutput:
    """Append new tokens up to the one that ends the request; the rest is dropped."""
    num_kept = 0
    for token_id in token_ids:
        request.output_token_ids.append(token_id)
        if request.grammar is not None:
            request.grammar.accept(token_id)
        num_kept += 1
        if stop_rule.apply(request):
            break
    output = RequestOutput(
        request_id=request.request_id,
        token_ids=token_ids[:num_kept],
        logprobs=logprobs[:num_kept] if logprobs is not None else None,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        ends_in_text=request.ends_in_text,
    )
    if request.grammar is not None and request.grammar.error is not None:
        _add_grammar_error(request.grammar, output)
    if not request.has_output:
        _add_first_facts(request, output)
    return output


def _add_grammar_error(grammar: GrammarState, output: RequestOutput) -> None:
    """What came last cannot be trusted; the caller's grammar is to blame, not the engine."""
    output.token_ids, output.logprobs = [], None
    output.error = f"{grammar.param} cannot be followed any further: {grammar.error}"
    output.error_param = grammar.param


def _add_first_facts(request: Request, output: RequestOutput) -> None:
    output.num_cached_tokens = request.num_cached_tokens
    output.prompt_logprobs = request.prompt_logprobs
    request.prompt_logprobs = None
    request.has_output = True
