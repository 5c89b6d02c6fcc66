"""Which requests can never be run, whatever the load. Ranges of sampling parameters are the API's business."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from engine.errors import RequestError
from engine.messages import GenerateRequest
from engine.step import RunnerInfo


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks requests against what the model and its KV cache can take."""

    info: RunnerInfo

    @property
    def max_model_len(self) -> int:
        """Tokens that one request may have: the model's limit, or the whole KV cache where that is smaller."""
        return min(self.info.max_model_len, self._num_kv_tokens)

    def check(self, message: GenerateRequest) -> None:
        """Raise `RequestError` with the field's name if the request cannot be run."""
        if not message.prompt_token_ids:
            raise RequestError("prompt_token_ids is empty: at least one token is needed", "prompt_token_ids")
        for name, token_ids in _token_id_fields(message):
            self._check_vocabulary(name, token_ids)
        self._check_length(message)

    @property
    def _num_kv_tokens(self) -> int:
        return self.info.num_blocks * self.info.block_size

    def _check_vocabulary(self, name: str, token_ids: Collection[int]) -> None:
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.info.vocab_size):
            return
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.info.vocab_size)
        raise RequestError(f"{name} has token id {wrong}, but ids go from 0 to {self.info.vocab_size - 1}", name)

    def _check_length(self, message: GenerateRequest) -> None:
        num_tokens = len(message.prompt_token_ids)
        if num_tokens < self.max_model_len:
            return
        limit, name = self.info.max_model_len, "max_model_len"
        if self._num_kv_tokens < limit:
            limit, name = self._num_kv_tokens, "the whole KV cache"
        raise RequestError(
            f"prompt_token_ids has {num_tokens} tokens, but {name} is {limit} tokens "
            "and one of them must be left for the output",
            "prompt_token_ids",
        )


def _token_id_fields(message: GenerateRequest) -> Iterator[tuple[str, Collection[int]]]:
    sampling = message.sampling
    yield "prompt_token_ids", message.prompt_token_ids
    yield "resumed_token_ids", message.resumed_token_ids
    yield "stop_token_ids", sampling.stop_token_ids
    yield "allowed_token_ids", sampling.allowed_token_ids or ()
    yield "logit_bias", sampling.logit_bias or ()
    yield "logprob_token_ids", sampling.logprob_token_ids or ()
    for token_ids in sampling.bad_words_token_ids or ():
        yield "bad_words_token_ids", token_ids
