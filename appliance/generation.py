"""One generation: submit → decode → events, for all n choices; aborts on exit; goes on after the engine was lost.

What tokens mean as text is `appliance.text.choice_decoder`'s job; printing events is each protocol's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, cast

import msgspec

from appliance.errors import (
    APIError,
    InternalServerError,
    InvalidRequestError,
    PoisonRequestError,
    QueueFullError,
    UnavailableError,
)
from appliance.text.choice_decoder import ChoiceDecoder
from appliance.text.events import Event, Finish
from appliance.text.output_parser import OutputParser
from appliance.text.tokenizer import Tokenizer
from engine.client import Listener
from engine.errors import EngineLostError, EngineUnavailableError
from engine.messages import GenerateRequest, RequestGroup, RequestOutput, SamplingParams, TokenLogprobs

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0


class Engine(Protocol):
    """What a generation needs of `engine.client.EngineClient`."""

    def submit(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncIterator[RequestOutput]:
        """Generate; closing the iterator early aborts. What ``listener`` deals with is not yielded."""

    async def abort(self, request_ids: Iterable[str], finish_reason: Literal["abort", "stop"] = "abort") -> None:
        """Drop requests, which are counted as finished for that reason."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when requests are taken; EngineUnavailableError when that takes too long."""


@dataclass(frozen=True, kw_only=True)
class GenerationSpec:
    """What to generate. Choice ``i`` of ``n`` has ``sampling.seed + i``."""

    prompt_token_ids: list[int]
    sampling: SamplingParams
    request_id: str
    n: int = 1
    stop: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str | None = None
    arrival_time: float = 0.0
    tenant: str = ""  # whose it is
    group: RequestGroup | None = None  # prompts that are taken or refused together; None: only this one's choices


@dataclass
class ChoiceProgress:
    """How far a choice is, for logs; points in time are of `time.monotonic`."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_reason: str | None = None
    num_resumes: int = 0

    def note(self, output: RequestOutput) -> None:
        """Take in one output of the engine."""
        if output.token_ids:
            self.last_token_s = time.monotonic()
            self.first_token_s = self.first_token_s or self.last_token_s


class EventListener(Protocol):
    """Gets the events of a generation's choices as they come, in place of the one who iterates it and waits."""

    def is_ready(self) -> bool:
        """Whether `take` may be called; if not, the events are the iterator's."""

    def take(self, index: int, events: list[Event]) -> None:
        """What a choice says next: at least one event, and no `Finish`."""

    def fail(self, error: Exception) -> None:
        """The output cannot be read, or `take` raised this; the generation should be closed."""


@dataclass
class _Choice:
    index: int
    decoder: ChoiceDecoder
    last_events: list[Event] | None = None  # read already, and not handed out yet
    progress: ChoiceProgress = field(default_factory=ChoiceProgress)
    wait_until_s: float | None = None  # since it was last heard of: when waiting for an engine is over (monotonic)


class Generation:
    """Iterate it for ``(choice index, its next events)`` in the order of what happens; leave its context when done.

    Leaving (or cancelling the iteration) aborts what still runs. Raises APIError subclasses only. ``max_resumes`` is
    how often one choice is taken up again after the engine was lost, ``engine_wait_s`` how long each time to wait for
    it; with ``waits_to_begin`` as long as that, too, where there is no engine to begin with. ``make_parser`` builds the
    parser of one choice; ``on_resume`` is called each time one is taken up again.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        spec: GenerationSpec,
        *,
        max_resumes: int = 3,
        engine_wait_s: float = 60.0,
        waits_to_begin: bool = False,
        make_parser: Callable[[], OutputParser] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._on_resume = on_resume
        self._spec = spec
        self._max_resumes = max_resumes
        self._engine_wait_s = engine_wait_s
        self._waits_to_begin = waits_to_begin
        is_text_start = all(id in tokenizer.special_token_ids for id in spec.prompt_token_ids)
        self._choices = [_Choice(i, _make_decoder(tokenizer, spec, is_text_start, make_parser)) for i in range(spec.n)]
        self._group = spec.group or _group_of([spec])
        self._listener: EventListener | None = None
        self._batches = self._run()
        self.num_prompt_tokens = len(spec.prompt_token_ids)
        self.num_cached_tokens: int | None = None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def output_token_ids(self) -> list[list[int]]:
        """Each choice's tokens so far, the stopping one included, none after a stop string."""
        return [choice.decoder.token_ids for choice in self._choices]

    @property
    def num_output_tokens(self) -> list[int]:
        """How many tokens each choice has."""
        return [len(choice.decoder.token_ids) for choice in self._choices]

    @property
    def progress(self) -> list[ChoiceProgress]:
        """How far each choice is."""
        return [choice.progress for choice in self._choices]

    async def __aenter__(self) -> Generation:
        """Nothing is submitted before the first event is asked for."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort what still runs."""
        await self.aclose()

    async def aclose(self) -> None:
        """Abort what still runs; no task is left behind."""
        await self._batches.aclose()

    def __aiter__(self) -> AsyncIterator[tuple[int, list[Event]]]:
        """The one run of this generation."""
        return self._batches

    def hand_to(self, listener: EventListener) -> None:
        """From now on hand events to ``listener`` where it is ready; what ends a choice is always the iterator's."""
        self._listener = listener

    def _run(self) -> AsyncGenerator[tuple[int, list[Event]], None]:
        return self._choice_batches(self._choices[0]) if len(self._choices) == 1 else self._run_all()

    async def _run_all(self) -> AsyncGenerator[tuple[int, list[Event]], None]:
        """One task a choice; the queue is short, so that a slow reader makes the engine's client merge outputs."""
        queue: asyncio.Queue[tuple[int, list[Event]] | Exception] = asyncio.Queue(maxsize=len(self._choices))
        tasks = [asyncio.create_task(self._pump(choice, queue)) for choice in self._choices]
        try:
            num_running = len(tasks)
            while num_running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item[1]:
                    yield item
                else:
                    num_running -= 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, choice: _Choice, queue: asyncio.Queue[tuple[int, list[Event]] | Exception]) -> None:
        """All events of one choice, then an empty list; or the error that ended it."""
        try:
            async with aclosing(self._choice_batches(choice)) as batches:
                async for batch in batches:
                    await queue.put(batch)
            await queue.put((choice.index, []))
        except Exception as error:
            await queue.put(error)

    async def _choice_batches(self, choice: _Choice) -> AsyncGenerator[tuple[int, list[Event]], None]:
        """Non-empty lists of one choice's events, until `Finish`, over as many engine lives as allowed."""
        while True:
            outputs = self._engine.submit(self._request(choice), functools.partial(self._hand_over, choice))
            stream = cast(AsyncGenerator[RequestOutput, None], outputs)
            try:
                async with aclosing(stream):
                    async for output in stream:
                        if events := choice.last_events or self._take(choice, output):
                            if choice.decoder.is_finished:
                                await self._tell_engine(choice, output)
                            yield choice.index, events
                        if choice.decoder.is_finished:
                            return
                raise EngineLostError("the engine ended the stream without a finish reason")
            except EngineLostError:
                self._count_loss(choice)
            except EngineUnavailableError:
                if not (self._waits_to_begin or choice.progress.num_resumes):
                    raise _unavailable("the model is not ready") from None
            await self._await_engine(choice)

    def _hand_over(self, choice: _Choice, output: RequestOutput) -> bool:
        """Deal with an output right where it was read from the socket: no task has to be woken for it."""
        listener = self._listener
        if listener is None or output.finish_reason is not None or not listener.is_ready():
            return False
        try:
            events = self._take(choice, output)
            if choice.decoder.is_finished:
                choice.last_events = events
                return False
            if events:
                listener.take(choice.index, events)
        except Exception as error:
            listener.fail(error)
        return True

    def _take(self, choice: _Choice, output: RequestOutput) -> list[Event]:
        """The events of one output of the engine. Raises APIError where it is an error."""
        choice.wait_until_s = None
        if output.finish_reason == "error":
            raise _error_of(output)
        if self.num_cached_tokens is None:
            self.num_cached_tokens = output.num_cached_tokens
        if self.prompt_logprobs is None:
            self.prompt_logprobs = output.prompt_logprobs
        choice.progress.note(output)
        events = choice.decoder.feed(output)
        if choice.decoder.is_finished:
            finish = events[-1]
            choice.progress.finish_reason = finish.finish_reason if isinstance(finish, Finish) else output.finish_reason
        return events

    async def _tell_engine(self, choice: _Choice, output: RequestOutput) -> None:
        """A stop string is only seen here: the engine must be told that there is nothing left to do, and why."""
        if output.finish_reason is None:
            await self._engine.abort([self._request_id(choice)], "stop")

    def _request_id(self, choice: _Choice) -> str:
        return f"{self._spec.request_id}-{choice.index}"

    def _request(self, choice: _Choice) -> GenerateRequest:
        spec, sampling = self._spec, self._spec.sampling
        changes: dict[str, object] = {}
        if choice.index:
            changes["seed"] = _wrapped(sampling.seed + choice.index)
        if sampling.prompt_logprobs is not None and (choice.index or self.prompt_logprobs is not None):
            changes["prompt_logprobs"] = None  # the same for all choices, and needed once
        return GenerateRequest(
            request_id=self._request_id(choice),
            prompt_token_ids=spec.prompt_token_ids,
            sampling=msgspec.structs.replace(sampling, **changes) if changes else sampling,
            resumed_token_ids=list(choice.decoder.token_ids),
            arrival_time=spec.arrival_time or time.monotonic(),
            priority=spec.priority,
            cache_salt=spec.cache_salt,
            tenant=spec.tenant,
            group=self._group,
            was_admitted=choice.progress.num_resumes > 0,
        )

    def _count_loss(self, choice: _Choice) -> None:
        """The engine was lost while it worked on the choice. Raises InternalServerError where it was once too often."""
        choice.progress.num_resumes += 1
        request_id, num_tokens = self._spec.request_id, len(choice.decoder.token_ids)
        if choice.progress.num_resumes > self._max_resumes:
            logger.error("engine lost too often request_id=%s resumes=%d", request_id, self._max_resumes)
            raise InternalServerError("the engine failed repeatedly while it worked on this request")
        logger.warning("engine lost, waiting to go on request_id=%s output_tokens=%d", request_id, num_tokens)
        if self._on_resume:
            self._on_resume()

    async def _await_engine(self, choice: _Choice) -> None:
        """Return when an engine is ready to take the choice up; UnavailableError when that takes too long."""
        now_s = time.monotonic()
        if choice.wait_until_s is None:
            choice.wait_until_s = now_s + self._engine_wait_s
        try:
            await self._engine.wait_ready(choice.wait_until_s - now_s)
        except EngineUnavailableError:
            raise _unavailable(f"the engine did not come back within {self._engine_wait_s:g} s") from None


def group_together(specs: list[GenerationSpec]) -> list[GenerationSpec]:
    """The same, as one group: the engine takes all of them or none."""
    group = _group_of(specs)
    return [dataclasses.replace(spec, group=group) for spec in specs]


def _group_of(specs: Sequence[GenerationSpec]) -> RequestGroup | None:
    num_requests = sum(spec.n for spec in specs)
    num_tokens = sum(spec.n * len(spec.prompt_token_ids) for spec in specs)
    if num_requests == 1:
        return None
    return RequestGroup(group_id=specs[0].request_id, num_requests=num_requests, num_tokens=num_tokens)


def _make_decoder(
    tokenizer: Tokenizer, spec: GenerationSpec, is_text_start: bool, make_parser: Callable[[], OutputParser] | None
) -> ChoiceDecoder:
    return ChoiceDecoder(
        tokenizer,
        stop=spec.stop,
        include_stop=spec.include_stop_str_in_output,
        skip_special_tokens=spec.skip_special_tokens,
        is_text_start=is_text_start,
        min_tokens=spec.sampling.min_tokens,
        parser=make_parser() if make_parser else None,
    )


def _error_of(output: RequestOutput) -> APIError:
    if output.unavailable:
        return _unavailable(output.error or "the model is not ready")
    if output.error_param is not None:
        return InvalidRequestError(output.error or "the request cannot be run", param=output.error_param)
    if output.queue_limit is not None:
        return QueueFullError(output.error or "the server is full", output.queue_limit, RETRY_AFTER_S)
    logger.error("engine failed request_id=%s error=%s", output.request_id, output.error)
    if output.is_poison:
        return PoisonRequestError(output.error or "the engine fails at this request")
    return InternalServerError("the engine failed while it worked on this request")


def _unavailable(message: str) -> UnavailableError:
    return UnavailableError(message, retry_after_s=RETRY_AFTER_S)


def _wrapped(seed: int) -> int:
    """The seed as a signed 64-bit number, around the end."""
    return (seed + 2**63) % 2**64 - 2**63
