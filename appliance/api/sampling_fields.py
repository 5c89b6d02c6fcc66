"""The sampling fields that chat and completions share, their ranges, and how they become `SamplingParams`."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import Field, model_validator

from appliance.api.fields import MAX_INT64, MIN_INT64, Integer, StreamOptions, refuse
from appliance.api.served_model import ServedModel
from appliance.api.structured_outputs import ConstraintFields
from appliance.api.token_fields import check_token_ids, encode_bad_words, read_logit_bias
from appliance.settings import Settings
from engine.messages import SamplingParams

GREEDY_BELOW = 1e-5
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_CHARS = 32_768
# Unknown fields are ignored; these are known, and an answer without them would not be the one that was asked for.
UNSUPPORTED = {
    "use_beam_search": "is not supported",
    "repetition_detection": "is not supported; bound the answer with max_tokens, or use frequency_penalty",
    "thinking_token_budget": "is not supported",
    "prompt_embeds": "is not supported",
    "mm_processor_kwargs": "is not supported: this model reads nothing but text",
    "media_io_kwargs": "is not supported: this model reads nothing but text",
    "functions": "is not supported; use tools",
}
_MEANS_NOTHING: tuple[Any, ...] = (None, False, -1, [], {})


class SamplingFields(ConstraintFields):
    """Fields of a generation request; each range is checked here or, where it depends on the box, by `check`."""

    model: str | None = None
    n: Integer = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stream_interval: Integer = Field(1, ge=1)
    max_tokens: Integer | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Integer | None = Field(None, ge=-1, le=MAX_INT64)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: Integer | None = Field(None, ge=MIN_INT64, le=MAX_INT64)
    logit_bias: dict[str, Any] | None = None
    stop: Any = Field(
        None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    )
    stop_token_ids: list[Integer] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Integer = Field(0, ge=0)
    skip_special_tokens: bool = True
    allowed_token_ids: list[Integer] | None = None
    bad_words: list[str] = Field(default_factory=list)
    prompt_logprobs: Integer | None = Field(None, ge=-1)
    logprob_token_ids: list[Integer] | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: Literal["left", "right"] | None = None
    echo: bool = False
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool = False
    return_prompt_text: bool = False
    priority: Integer = Field(0, ge=MIN_INT64, le=MAX_INT64)
    cache_salt: str | None = None
    request_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name, problem in UNSUPPORTED.items():
                if value.get(name) not in _MEANS_NOTHING:
                    raise refuse(name, problem)
        return value

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to report beside the sampled one; None = no logprobs. Each protocol spells it its way."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for each prompt token."""
        return self.prompt_logprobs

    def check(self, settings: Settings, model: ServedModel) -> None:
        """Raises InvalidRequestError for what the schema alone cannot see."""
        self._check_stream(settings)
        _check_range("n", self.n, 1, settings.max_n)
        check_logprobs("prompt_logprobs", self.prompt_logprobs, settings)
        self._check_stop(settings)
        self._check_token_ids(model.vocab_size)
        self._check_truncation(model.max_model_len)
        if self.cache_salt is not None and not (
            1 <= len(self.cache_salt) <= 128 and not set("@/\\\0") & set(self.cache_salt)
        ):
            raise refuse("cache_salt", "must be 1 to 128 characters without @, /, \\ and NUL")

    def _check_stream(self, settings: Settings) -> None:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options", "is only allowed with stream true")
        if self.stream and self.prompt_logprobs is not None:
            raise refuse("prompt_logprobs", "is not available with stream true")

    def _check_stop(self, settings: Settings) -> None:
        if self.stop is None:
            return
        is_valid = isinstance(self.stop, str) or (
            isinstance(self.stop, list) and all(isinstance(word, str) for word in self.stop)
        )
        if not is_valid:
            raise refuse("stop", "must be a string or a list of strings")
        if len(self.stop_strings) > settings.max_stop_strings:
            raise refuse("stop", f"must have at most {settings.max_stop_strings} strings")
        if not all(self.stop_strings):
            raise refuse("stop", "must not hold an empty string")
        if sum(map(len, self.stop_strings)) > MAX_STOP_CHARS:
            raise refuse("stop", f"must have at most {MAX_STOP_CHARS} characters together")

    def _check_token_ids(self, vocab_size: int) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            token_ids = getattr(self, name) or []
            if len(token_ids) > vocab_size:
                raise refuse(name, f"must have at most as many ids as the vocabulary, {vocab_size}")
            check_token_ids(name, token_ids, vocab_size)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise refuse("allowed_token_ids", "must not be empty")
        if self.logprob_token_ids is not None:
            if len(self.logprob_token_ids) > MAX_LOGPROB_TOKEN_IDS:
                raise refuse("logprob_token_ids", f"must have at most {MAX_LOGPROB_TOKEN_IDS} ids")
            if self.num_logprobs is None:
                raise refuse("logprob_token_ids", "needs logprobs")

    def _check_truncation(self, max_model_len: int) -> None:
        if self.truncate_prompt_tokens is None or self.truncate_prompt_tokens == -1:
            return
        _check_range("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, max_model_len)

    def to_sampling_params(self, model: ServedModel, max_tokens: int) -> SamplingParams:
        """What the engine gets; the model's defaults fill in what was left out."""
        temperature = _or_default(self.temperature, model.defaults.temperature)
        is_greedy = temperature < GREEDY_BELOW
        if self.min_tokens > max_tokens:
            raise refuse("min_tokens", f"must be at most max_tokens, here {max_tokens}")
        return SamplingParams(
            max_tokens=max_tokens,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            min_tokens=self.min_tokens,
            temperature=0.0 if is_greedy else temperature,
            top_k=0 if is_greedy else self._top_k(model),
            top_p=1.0 if is_greedy else _or_default(self.top_p, model.defaults.top_p),
            min_p=0.0 if is_greedy else _or_default(self.min_p, model.defaults.min_p),
            repetition_penalty=_or_default(self.repetition_penalty, model.defaults.repetition_penalty),
            presence_penalty=_or_default(self.presence_penalty, model.defaults.presence_penalty),
            frequency_penalty=_or_default(self.frequency_penalty, model.defaults.frequency_penalty),
            logit_bias=read_logit_bias(self.logit_bias, model.vocab_size) or None,
            allowed_token_ids=self.allowed_token_ids,
            bad_words_token_ids=encode_bad_words(self.bad_words, model) or None,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            logprobs=self.num_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
            logprob_token_ids=self.logprob_token_ids,
            grammar=self.make_grammar(),
        )

    def _top_k(self, model: ServedModel) -> int:
        top_k = _or_default(self.top_k, model.defaults.top_k)
        # Both 0 and -1 mean off; more than the vocabulary is the same as off.
        return int(top_k) if 0 < top_k < model.vocab_size else 0


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _check_range(param: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise refuse(param, f"must be between {low} and {high}")


def check_logprobs(param: str, value: int | None, settings: Settings) -> None:
    """Raises InvalidRequestError. -1 means the whole vocabulary and is allowed only where the limit says so."""
    limit = settings.max_logprobs
    if value is None or limit == -1:
        return
    _check_range(param, value, 0, limit)
