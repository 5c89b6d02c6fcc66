"""Prompts on their way to the engine: tokenized off the event loop where that takes long, cut only on request, and
checked against the context before anything is generated."""

from __future__ import annotations

from appliance.api.event_loop import INLINE_SIZE, off_loop
from appliance.api.fields import refuse
from appliance.api.sampling_fields import SamplingFields
from appliance.api.served_model import ServedModel
from appliance.errors import ContextLengthError


async def encode_prompt(
    text: str, model: ServedModel, request: SamplingFields, *, add_special_tokens: bool, param: str
) -> list[int]:
    """Token ids of `text`. Raises ContextLengthError early for texts that cannot fit whatever they say."""

    def encode() -> list[int]:
        if request.truncate_prompt_tokens is None:
            check_characters(text, model, param)
        return model.tokenizer.encode(text, add_special_tokens)

    return await off_loop(len(text), encode)


def check_characters(text: str, model: ServedModel, param: str) -> None:
    """Refuse what has more characters than the context's tokens can spell, without tokenizing it."""
    if len(text) <= INLINE_SIZE:
        return
    fewest_tokens = -(-len(text) // model.longest_piece_chars)
    if fewest_tokens > model.max_model_len:
        raise _too_long(f"at least {fewest_tokens}", model, param)


def _too_long(num_tokens: str, model: ServedModel, param: str) -> ContextLengthError:
    return ContextLengthError(
        f"This model's maximum context length is {model.max_model_len} tokens, but the {param} has {num_tokens} tokens "
        "and an answer needs at least one more",
        param=param,
    )


def fit_prompt(token_ids: list[int], model: ServedModel, request: SamplingFields, *, param: str) -> list[int]:
    """The prompt after ``truncate_prompt_tokens``. Raises InvalidRequestError where it is empty or too long."""
    kept = request.truncate_prompt_tokens
    if kept is not None:
        kept = model.max_model_len - 1 if kept == -1 else kept
        token_ids = token_ids[:kept] if request.truncation_side == "right" else token_ids[-kept:]
    if not token_ids:
        raise refuse(param, "must have at least one token")
    if len(token_ids) >= model.max_model_len:
        raise _too_long(str(len(token_ids)), model, param)
    return token_ids


def limit_output(asked: int | None, num_prompt_tokens: int, model: ServedModel, *, param: str = "max_tokens") -> int:
    """Tokens that may be generated: what was asked for (None = all there is room for), bounded by the context."""
    room = model.max_model_len - num_prompt_tokens
    if asked is None:
        return room
    if asked > model.max_model_len:
        raise refuse(param, f"must be at most the context length of {model.max_model_len} tokens")
    if asked < 1:
        raise refuse(param, "must be at least 1")
    return min(asked, room)
