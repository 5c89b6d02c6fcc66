"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from appliance.api.fields import Integer, refuse
from appliance.api.sampling_fields import SamplingFields, check_logprobs
from appliance.api.served_model import ServedModel
from appliance.api.token_fields import check_token_ids
from appliance.settings import Settings

DEFAULT_MAX_TOKENS = 16
Prompt = str | list[int]

_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        _TOKENS,
        {"type": "array", "items": _TOKENS},
    ]
}


class CompletionRequest(SamplingFields):
    """A text completion request."""

    prompt: Any = Field(json_schema_extra=_PROMPT_SCHEMA)
    logprobs: Integer | None = Field(None, ge=-1)
    best_of: Integer | None = None
    suffix: str | None = None
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        """Completions ask for logprobs by number; 0 is the sampled token alone."""
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """An echoed prompt has logprobs like the rest of the text."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        numbers = [number for number in asked if number is not None]
        return None if not numbers else -1 if -1 in numbers else max(numbers)

    @property
    def discards_output(self) -> bool:
        """``max_tokens`` 0 with echo: only the prompt (and its logprobs) is wanted."""
        return self.max_tokens == 0

    @property
    def asked_max_tokens(self) -> int:
        """The engine makes at least one token, even where none is wanted."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens or 1

    def check(self, settings: Settings, model: ServedModel) -> None:
        """Raises InvalidRequestError."""
        super().check(settings, model)
        check_logprobs("logprobs", self.logprobs, settings)
        if self.suffix:
            raise refuse("suffix", "is not supported: this model does not fill in the middle")
        if self.best_of is not None and self.best_of != self.n:
            raise refuse("best_of", "is not supported; ask for n choices instead")
        if self.discards_output and not self.echo:
            raise refuse("max_tokens", "must be at least 1 without echo")

    def read_prompts(self, settings: Settings, model: ServedModel) -> list[Prompt]:
        """The prompts, each a text or token ids. Raises InvalidRequestError."""
        prompts = _split(self.prompt)
        if len(prompts) > settings.max_prompts:
            raise refuse("prompt", f"must be at most {settings.max_prompts} prompts")
        if len(prompts) * self.n > max(settings.max_prompts, settings.max_n):
            limit = max(settings.max_prompts, settings.max_n)
            raise refuse("n", f"times the number of prompts must be at most {limit}")
        for prompt in prompts:
            if isinstance(prompt, list):
                check_token_ids("prompt", prompt, model.vocab_size)
        return prompts


def _split(prompt: Any) -> list[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return prompt
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(item, list) and item and _are_ids(item) for item in prompt):
            return prompt
    raise refuse(
        "prompt", "must be a string, a list of strings, a list of token ids or a list of such lists, not empty"
    )


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)
