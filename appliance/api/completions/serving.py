"""Answers a completions request: every prompt becomes a generation of n choices; the collected answer.

Printing a stream is `completions.streaming`'s; both print choices through `ChoicePrinter`, so they cannot disagree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from appliance.api.choice_stream import ChoiceStream
from appliance.api.completions.schemas import CompletionRequest, Prompt
from appliance.api.generation_spec import make_spec
from appliance.api.logprobs import CompletionLogprobs, TokenPrinter, prompt_logprobs
from appliance.api.prompt import encode_prompt, fit_prompt, limit_output
from appliance.api.rate_limits import charge_prompt
from appliance.api.request_ids import make_object_id
from appliance.api.served_model import ServedModel
from appliance.api.state import ApiState
from appliance.api.usage import make_usage
from appliance.errors import InternalServerError
from appliance.generation import Generation, GenerationSpec, group_together
from appliance.text.events import Content, Event, Finish, Reasoning
from engine.messages import TokenLogprobs


@dataclass
class CompletionJob:
    """One completions request on its way. Choice ``i`` belongs to ``generations[i // n]``."""

    request: CompletionRequest
    model: ServedModel
    prompts: list[Prompt]
    generations: list[Generation]
    prompt_token_ids: list[list[int]]
    printer: TokenPrinter
    reports_cached: bool
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_choices(self) -> int:
        """Over all prompts."""
        return len(self.generations) * self.request.n

    def make_stream(self) -> ChoiceStream:
        """The events of all choices."""
        return ChoiceStream(self.generations, self.request.n)

    def usage(self) -> dict[str, Any]:
        """Tokens so far, over all prompts and choices."""
        num_output = 0 if self.request.discards_output else sum(sum(g.num_output_tokens) for g in self.generations)
        cached = sum(g.num_cached_tokens or 0 for g in self.generations)
        num_prompt = sum(map(len, self.prompt_token_ids))
        return make_usage(num_prompt, num_output, cached if self.reports_cached else None)

    def prompt_text(self, number: int) -> str:
        """What ``echo`` repeats: the text as it was sent, or what the ids spell."""
        prompt = self.prompts[number]
        if isinstance(prompt, str) and self.request.truncate_prompt_tokens is None:
            return prompt
        token_ids = self.prompt_token_ids[number]
        return self.model.tokenizer.decode(token_ids, skip_special_tokens=isinstance(prompt, str))


async def start_completion(request: CompletionRequest, state: ApiState) -> CompletionJob:
    """Everything that can be wrong with a request is found here. Raises APIError."""
    state.drain.check()
    model = state.models.get(request.model)
    request.check(state.settings, model)
    prompts = request.read_prompts(state.settings, model)
    token_ids = [await _encode(prompt, model, request) for prompt in prompts]
    object_id = make_object_id("cmpl")
    specs = [_make_spec(request, model, ids, f"{object_id}-{number}") for number, ids in enumerate(token_ids)]
    await charge_prompt(sum(map(len, token_ids)))
    return CompletionJob(
        request=request,
        model=model,
        prompts=prompts,
        generations=[state.make_generation(model, spec) for spec in group_together(specs)],
        prompt_token_ids=token_ids,
        printer=state.make_printer(model, request),
        reports_cached=state.settings.enable_prompt_tokens_details,
        id=object_id,
    )


async def _encode(prompt: Prompt, model: ServedModel, request: CompletionRequest) -> list[int]:
    if isinstance(prompt, str):
        add_special_tokens = request.add_special_tokens
        prompt = await encode_prompt(prompt, model, request, add_special_tokens=add_special_tokens, param="prompt")
    return fit_prompt(prompt, model, request, param="prompt")


def _make_spec(request: CompletionRequest, model: ServedModel, token_ids: list[int], request_id: str) -> GenerationSpec:
    max_tokens = limit_output(request.asked_max_tokens, len(token_ids), model)
    return make_spec(request, model, token_ids, max_tokens, request_id)


class ChoicePrinter:
    """Prints one choice piece by piece; the first piece brings what belongs to the prompt."""

    def __init__(self, job: CompletionJob, index: int) -> None:
        self._job = job
        self._request = job.request
        self._number = index // job.request.n
        self._index = index
        self._logprobs = CompletionLogprobs(job.printer)
        self._is_first = True
        self.num_tokens = 0

    def print(
        self, text: str, token_ids: list[int], logprobs: list[TokenLogprobs] | None, finish: Finish | None
    ) -> dict[str, Any]:
        """The choice object for what came since the last call."""
        if self._request.discards_output:
            text, token_ids, logprobs = "", [], []
        self.num_tokens += len(token_ids)
        entries: list[TokenLogprobs | None] = list(logprobs or [])
        entry_ids = token_ids
        is_first, self._is_first = self._is_first, False
        if is_first and self._request.echo:
            text = self._job.prompt_text(self._number) + text
            entries, entry_ids = [*self._prompt_entries(), *entries], [*self._prompt_ids, *token_ids]
        choice: dict[str, Any] = {
            "index": self._index,
            "text": text,
            "logprobs": self._logprobs.print(entries, entry_ids) if self._request.logprobs is not None else None,
            "finish_reason": self._finish_reason(finish),
            "stop_reason": None if finish is None or self._request.discards_output else finish.stop_reason,
        }
        return choice | self._extras(token_ids, is_first)

    @property
    def _prompt_ids(self) -> list[int]:
        return self._job.prompt_token_ids[self._number]

    def _finish_reason(self, finish: Finish | None) -> str | None:
        if finish is None:
            return None
        return "length" if self._request.discards_output else finish.finish_reason

    def _prompt_entries(self) -> list[TokenLogprobs | None]:
        if self._request.logprobs is None:
            return []
        entries = self._job.generations[self._number].prompt_logprobs
        if entries is None or len(entries) != len(self._prompt_ids):
            raise InternalServerError("the engine did not report the prompt's logprobs")
        return entries

    def _extras(self, token_ids: list[int], is_first: bool) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self._request.return_token_ids:
            extras["token_ids"] = token_ids
            if is_first:
                extras["prompt_token_ids"] = self._prompt_ids
        if self._request.return_prompt_text and is_first:
            extras["prompt_text"] = self._job.prompt_text(self._number)
        return extras


@dataclass
class CollectedText:
    """One choice's events, folded. A text completion has no reasoning or tools: what the model says is the text."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, event: Event) -> None:
        """Fold one event in."""
        if isinstance(event, Finish):
            self.finish = event
        elif isinstance(event, (Content, Reasoning)):
            self.text.append(event.text)
            self.token_ids += event.token_ids
            self.logprobs += event.logprobs or []

    def print(self, printer: ChoicePrinter) -> dict[str, Any]:
        """The choice object, or the next piece of it."""
        return printer.print("".join(self.text), self.token_ids, self.logprobs, self.finish)


async def collect_completion(job: CompletionJob, stream: ChoiceStream) -> dict[str, Any]:
    """The whole answer. Raises what the stream raises."""
    choices = [CollectedText() for _ in range(job.num_choices)]
    while (batch := await stream.get()) is not None:
        for index, event in batch:
            choices[index].add(event)
    return {
        "id": job.id,
        "object": "text_completion",
        "created": job.created,
        "model": job.model.name,
        "choices": [_print_collected(job, index, choice) for index, choice in enumerate(choices)],
        "system_fingerprint": job.model.system_fingerprint,
        "usage": job.usage(),
    }


def _print_collected(job: CompletionJob, index: int, choice: CollectedText) -> dict[str, Any]:
    printed = choice.print(ChoicePrinter(job, index))
    if job.request.prompt_logprobs is not None:
        logprobs = job.generations[index // job.request.n].prompt_logprobs
        printed["prompt_logprobs"] = prompt_logprobs(job.printer, logprobs or [])
    return printed
