"""What one HTTP request did, gathered on its way for the line that is logged at its end. Numbers only, never text."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive

from appliance.api.body_writer import BodyWriter
from appliance.generation import ChoiceProgress, Generation, GenerationSpec
from appliance.logs import log_facts

logger = logging.getLogger(__name__)

_SHOWN_PARAMS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "logprobs", "ignore_eos")


@dataclass
class RequestRecord:
    """Made by the access middleware, filled by whoever begins a generation (see `get_record`)."""

    state: dict[str, Any]  # of the ASGI scope
    logs_params: bool = False
    receive: Receive | None = None  # what says that the client is gone, once the body was read
    body_writer: BodyWriter | None = None  # past all middleware, for what an answer that has begun goes on with
    num_written_bytes: int = 0  # with it
    started_s: float = field(default_factory=time.monotonic)
    model: str | None = None
    ids: list[str] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        """The header's, or the body's, or ours."""
        return str(self.state["request_id"])

    def add(self, model: str, spec: GenerationSpec, generation: Generation) -> None:
        """A generation begins for this request."""
        self.model = model
        self.ids.append(spec.request_id)
        self.generations.append(generation)
        if self.logs_params:
            log_facts(logger, logging.INFO, "request begins", self._params(model, spec))

    def _params(self, model: str, spec: GenerationSpec) -> dict[str, Any]:
        params = {name: getattr(spec.sampling, name) for name in _SHOWN_PARAMS}
        return {
            "request_id": self.request_id,
            "model": model,
            "id": spec.request_id,
            "prompt_tokens": len(spec.prompt_token_ids),
            "n": spec.n,
            **params,
            "num_stop": len(spec.stop),
            "has_grammar": spec.sampling.grammar is not None,
            "priority": spec.priority,
        }

    @property
    def num_output_tokens(self) -> int:
        """Generated so far, over all choices."""
        return sum(num for generation in self.generations for num in generation.num_output_tokens)

    def facts(self) -> dict[str, Any]:
        """For the log; empty where nothing was generated."""
        if not self.generations:
            return {}
        progress = [choice for generation in self.generations for choice in generation.progress]
        first_s = min((choice.first_token_s for choice in progress if choice.first_token_s), default=None)
        num_tokens = [num for generation in self.generations for num in generation.num_output_tokens]
        return {
            "model": self.model,
            "id": self.ids[0].rpartition("/")[2],
            "prompt_tokens": sum(generation.num_prompt_tokens for generation in self.generations),
            "cached_tokens": sum(generation.num_cached_tokens or 0 for generation in self.generations),
            "output_tokens": sum(num_tokens),
            "ttft_s": None if first_s is None else round(first_s - self.started_s, 4),
            "itl_s": _mean_itl_s(progress, num_tokens),
            "finish": ",".join(sorted({choice.finish_reason or "abort" for choice in progress})),
            "resumes": sum(choice.num_resumes for choice in progress) or None,
        }


def _mean_itl_s(progress: list[ChoiceProgress], num_tokens: list[int]) -> float | None:
    """Between the tokens of a choice, over all choices that have several."""
    seconds, num_gaps = 0.0, 0
    for choice, num in zip(progress, num_tokens, strict=True):
        if num > 1 and choice.first_token_s is not None and choice.last_token_s is not None:
            seconds += choice.last_token_s - choice.first_token_s
            num_gaps += num - 1
    return round(seconds / num_gaps, 5) if num_gaps else None


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def get_record() -> RequestRecord | None:
    """That of the HTTP request whose task this is."""
    return _current.get()


@contextlib.contextmanager
def recording(record: RequestRecord) -> Iterator[RequestRecord]:
    """While in here, and in the tasks that begin here, `get_record` finds it."""
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)
