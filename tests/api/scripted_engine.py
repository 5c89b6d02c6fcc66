"""An engine in this process that answers by rule: what a request's logit_bias forces, else a script of token ids.

Logprobs are made up but consistent: the sampled token has -0.5, the k others -1.5, -2.5, … Everything that was
submitted and aborted is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from engine.client import Listener
from engine.errors import EngineUnavailableError
from engine.messages import EngineInfo, GenerateRequest, RequestOutput, TokenLogprobs

NEWLINE, RED, EOS = 198, 2382, 2
METRICS = """\
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0.0
"""
Rule = Callable[[GenerateRequest, int], int]


def say_red(request: GenerateRequest, position: int) -> int:
    """What the bias pushes most, else " red"; with a temperature the seed picks among ten tokens."""
    if request.sampling.temperature > 0:
        return 500 + (request.sampling.seed * 7 + position * 3) % 10
    bias = request.sampling.logit_bias or {}
    best = max(bias, key=lambda token: bias[token], default=RED)
    return best if bias.get(best, 1) > 0 else RED


@dataclass
class ScriptedEngine:
    """Implements what the API needs of `engine.client.EngineClient`."""

    rule: Rule = say_red
    is_ready: bool = True
    refuses: RequestOutput | None = None  # the only answer to every request
    fails_after: int | None = None  # tokens, then an error output
    tokens_a_step: int = 1
    max_model_len: int = 0
    gate: asyncio.Semaphore | None = None  # one release a step
    submitted: list[GenerateRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    arrivals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    is_started: bool = False
    was_ready: bool = False

    async def start(self) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_started = False

    async def submit(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncIterator[RequestOutput]:
        if not self.is_ready:
            raise EngineUnavailableError("nobody answers")
        assert request.request_id not in self.running, "ids must be unique"
        self.submitted.append(request)
        self.running.add(request.request_id)
        self.arrivals.release()
        is_finished = False
        try:
            async for output in self._answer(request):
                is_finished = output.finish_reason is not None
                if listener is None or not listener(output):
                    yield output
        finally:
            self.running.discard(request.request_id)
            if not is_finished:
                self.aborted.append(request.request_id)

    async def _answer(self, request: GenerateRequest) -> AsyncIterator[RequestOutput]:
        if self.refuses is not None:
            yield self.refuses
            return
        position = 0
        while True:
            await (self.gate.acquire() if self.gate else asyncio.sleep(0))
            output = self._step(request, position)
            if position == 0:
                output.num_cached_tokens = 0
                output.prompt_logprobs = self._prompt_logprobs(request)
            position += len(output.token_ids)
            yield output
            if output.finish_reason:
                return

    def _step(self, request: GenerateRequest, position: int) -> RequestOutput:
        output = RequestOutput(request_id=request.request_id)
        if self.fails_after is not None and position >= self.fails_after:
            output.finish_reason, output.error = "error", "a tensor fell over at /home/x/y.py"
            return output
        for offset in range(self.tokens_a_step):
            token = self.rule(request, position + offset)
            output.token_ids.append(token)
            stops = token in request.sampling.stop_token_ids
            if stops or (token == EOS and not request.sampling.ignore_eos):
                output.finish_reason, output.stop_reason = "stop", token if stops else None
                break
            if position + offset + 1 >= request.sampling.max_tokens:
                output.finish_reason = "length"
                break
        if request.sampling.logprobs is not None:
            output.logprobs = [make_logprobs(token, request.sampling.logprobs) for token in output.token_ids]
        return output

    def _prompt_logprobs(self, request: GenerateRequest) -> list[TokenLogprobs | None] | None:
        k = request.sampling.prompt_logprobs
        if k is None:
            return None
        return [None, *(make_logprobs(token, k) for token in request.prompt_token_ids[1:])]

    async def abort(self, request_ids: Iterable[str], finish_reason: str = "abort") -> None:
        self.aborted += request_ids

    async def info(self, timeout_s: float = 2.0) -> EngineInfo:
        self.was_ready |= self.is_ready
        return EngineInfo(
            call_id=0,
            engine_id="e1",
            pid=1,
            phase="ready" if self.is_ready else "loading weights",
            percent=100.0 if self.is_ready else 40.0,
            is_ready=self.is_ready,
            phase_seconds={"starting": 0.1},
            max_model_len=self.max_model_len,
        )

    async def wait_ready(self, timeout_s: float) -> None:
        if not self.is_ready:
            raise EngineUnavailableError("nobody answers")

    async def metrics(self, timeout_s: float = 2.0, *, openmetrics: bool = False) -> str:
        if not self.is_ready:
            raise EngineUnavailableError("nobody answers")
        return METRICS

    async def reset_prefix_cache(self) -> bool:
        return True


def make_logprobs(token: int, k: int) -> TokenLogprobs:
    """A made-up distribution with `token` on top; the last of k others is impossible."""
    top = [(token, -0.5), *((1000 + i, -1.5 - i) for i in range(k - 1))][:k] if k else []
    if k > 2:
        top[-1] = (top[-1][0], float("-inf"))
    return TokenLogprobs(token_id=token, logprob=-0.5, rank=1, top=top)
