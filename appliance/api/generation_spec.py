"""A request's fields as one `GenerationSpec`."""

from __future__ import annotations

import time

from appliance.api.sampling_fields import SamplingFields
from appliance.api.served_model import ServedModel
from appliance.generation import GenerationSpec


def make_spec(
    request: SamplingFields, model: ServedModel, token_ids: list[int], max_tokens: int, request_id: str
) -> GenerationSpec:
    """Raises InvalidRequestError for sampling fields that do not go together."""
    return GenerationSpec(
        prompt_token_ids=token_ids,
        sampling=request.to_sampling_params(model, max_tokens),
        n=request.n,
        stop=request.stop_strings,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        request_id=request_id,
        priority=request.priority,
        cache_salt=request.cache_salt,
        arrival_time=time.monotonic(),
    )
