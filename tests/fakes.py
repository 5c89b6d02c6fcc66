"""An engine without a process: `FakeEngine` has the interface of `engine.client.EngineClient` and answers by script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.client import Listener
from engine.errors import EngineLostError, EngineUnavailableError
from engine.messages import EngineInfo, GenerateRequest, RequestOutput, TokenLogprobs

METRICS = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the engine says to one request, whole: a resumed request gets what comes after its resumed tokens.

    ``lost_after`` and ``error_after`` count output tokens: then the engine is gone, or fails with `error`. ``gate``
    is acquired before each output.
    """

    token_ids: Sequence[int] = ()
    finish_reason: str = "stop"
    stop_reason: int | None = None
    tokens_an_output: int = 1
    num_cached_tokens: int = 0
    error: str | None = None
    error_param: str | None = None
    error_after: int = 0
    lost_after: int | None = None
    gate: asyncio.Semaphore | None = None


Script = Callable[[GenerateRequest], Answer]


@dataclass
class FakeEngine:
    """``script`` is a function of the request, a mapping from prompts (tuples of ids), or one answer for all."""

    script: Script | Mapping[tuple[int, ...], Answer] | Answer = field(default_factory=Answer)
    is_available: bool = True  # False: nobody answers
    is_ready: bool = True  # False: loading
    max_model_len: int = 2048
    requests: list[GenerateRequest] = field(default_factory=list)  # all that were begun
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)  # ids, whether by `abort` or by closing the iterator
    is_started: bool = False
    was_ready: bool = False

    async def start(self) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_started = False

    async def submit(
        self, request: GenerateRequest, listener: Listener | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        self._check_available()
        if not self.is_ready:
            raise EngineUnavailableError("the engine is not ready: loading weights, 40 %")
        self.requests.append(request)
        self.running.add(request.request_id)
        is_finished = False
        try:
            async for output in _play(self._answer(request), request):
                if request.request_id not in self.running:
                    output = RequestOutput(request_id=request.request_id, finish_reason="abort")
                is_finished = output.finish_reason is not None
                yield output
                if is_finished:
                    return
        except EngineLostError:
            is_finished = True
            raise
        finally:
            if not is_finished:
                await self.abort([request.request_id])
            self.running.discard(request.request_id)

    async def abort(self, request_ids: Iterable[str], finish_reason: Literal["abort", "stop"] = "abort") -> None:
        for request_id in set(request_ids) & self.running:
            self.running.discard(request_id)
            self.aborted.append(request_id)

    async def info(self, timeout_s: float = 2.0) -> EngineInfo:
        self._check_available()
        self.was_ready |= self.is_ready
        return EngineInfo(
            call_id=0,
            engine_id="fake",
            pid=1,
            phase="ready" if self.is_ready else "loading weights",
            percent=100.0 if self.is_ready else 40.0,
            is_ready=self.is_ready,
            phase_seconds={"starting": 0.1},
            max_model_len=self.max_model_len if self.is_ready else 0,
            num_running=len(self.running),
        )

    async def wait_ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not (self.is_available and self.is_ready):
            if time.monotonic() >= deadline_s:
                raise EngineUnavailableError("not ready in time")
            await asyncio.sleep(0.005)

    async def metrics(self, timeout_s: float = 2.0, *, openmetrics: bool = False) -> str:
        self._check_available()
        return METRICS

    async def reset_prefix_cache(self, timeout_s: float = 10.0) -> bool:
        self._check_available()
        return not self.running

    def _check_available(self) -> None:
        if not self.is_available:
            raise EngineUnavailableError("no engine answers")

    def _answer(self, request: GenerateRequest) -> Answer:
        if isinstance(self.script, Answer):
            return self.script
        if isinstance(self.script, Mapping):
            return self.script[tuple(request.prompt_token_ids)]
        return self.script(request)


async def _play(answer: Answer, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
    tokens = list(answer.token_ids)[: request.sampling.max_tokens]
    is_cut = len(tokens) < len(answer.token_ids)
    begin = start = len(request.resumed_token_ids)
    while True:
        await (answer.gate.acquire() if answer.gate else asyncio.sleep(0))
        if answer.lost_after is not None and start >= answer.lost_after:
            raise EngineLostError("the engine closed the connection")
        output = RequestOutput(request_id=request.request_id)
        if start == begin:
            output.num_cached_tokens = answer.num_cached_tokens
            output.prompt_logprobs = _prompt_logprobs(request)
        if answer.error is not None and start >= answer.error_after:
            output.finish_reason, output.error, output.error_param = "error", answer.error, answer.error_param
            yield output
            return
        output.token_ids = tokens[start : start + answer.tokens_an_output]
        output.logprobs = _logprobs(output.token_ids, request.sampling.logprobs)
        start += len(output.token_ids)
        if start >= len(tokens) and not (answer.lost_after == start or (answer.error and answer.error_after == start)):
            output.finish_reason = "length" if is_cut else answer.finish_reason
            output.stop_reason = None if is_cut else answer.stop_reason
        yield output
        if output.finish_reason is not None:
            return


def _logprobs(token_ids: list[int], k: int | None) -> list[TokenLogprobs] | None:
    return None if k is None else [make_logprobs(token, k) for token in token_ids]


def _prompt_logprobs(request: GenerateRequest) -> list[TokenLogprobs | None] | None:
    k = request.sampling.prompt_logprobs
    return None if k is None else [None, *(make_logprobs(token, k) for token in request.prompt_token_ids[1:])]


def make_logprobs(token: int, k: int) -> TokenLogprobs:
    """A made-up distribution: `token` has -0.5, the k - 1 ids after it -1.5, -2.5, …"""
    return TokenLogprobs(token, -0.5, 1, [(token + i, -0.5 - i) for i in range(k)])
