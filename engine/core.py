"""The engine without its socket: requests in, outputs out, one step at a time.

A step is update(execute(schedule())). Everything runs in the caller's thread; only the gauges are read from others.
With async scheduling steps are computed elsewhere (a GPU's queue, a thread), and each is scheduled and submitted before
the one before it is updated.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.admission import Admission
from engine.config import EngineConfig
from engine.errors import EngineError, RequestError
from engine.grammar.requests import RequestGrammars
from engine.journal import Journal
from engine.messages import GenerateRequest, RequestOutput
from engine.metrics import EngineMetrics
from engine.queue_load import QueueLoad
from engine.request import Request
from engine.scheduler.outputs import Update
from engine.scheduler.plan import PlannedStep
from engine.scheduler.quarantine import TRIAL_TOKENS
from engine.scheduler.scheduler import Scheduler
from engine.step import HasProcesses, Runner, RunnerInfo, StepOutput, TakesStepsAhead
from engine.step_allowance import StepAllowance
from engine.step_thread import StepThread
from engine.suspects import Suspects

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _StepUnderWay:
    """A step that is not updated yet. ``wait`` returns what the runner made of it."""

    planned: PlannedStep
    wait: Callable[[], StepOutput]
    submitted_s: float


class EngineCore:
    """Scheduler, runner and metrics of one model."""

    info: RunnerInfo
    """The runner's facts as they hold for requests: max_model_len is cut to the KV cache, eos_token_ids are all."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        metrics: EngineMetrics | None = None,
        *,
        journal: Journal | None = None,
        suspects: Suspects | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._journal = journal or Journal()
        self._suspects = suspects or Suspects()
        self._allowance = StepAllowance(config.engine_timeout_s, self._journal.step_seconds, self._journal.keep_seconds)
        self._admission = Admission(runner.info)
        self.info = _effective_info(config, runner.info, self._admission.max_model_len)
        self._scheduler = Scheduler(config, self.info)
        self._grammars = RequestGrammars(config, self.info)
        self._steps = _make_steps(runner) if config.async_scheduling else None
        self._under_way: deque[_StepUnderWay] = deque()  # the oldest first
        self._last_result_s = 0.0
        self.metrics = metrics or EngineMetrics(config, self.info)
        self.metrics.watch(self._scheduler)

    @property
    def num_running(self) -> int:
        """Requests in the running batch."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their (next) turn."""
        return self._scheduler.num_waiting

    @property
    def queue_load(self) -> QueueLoad:
        """How many wait, and how many of those will not for long."""
        return self._scheduler.queue_load

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, 0 … 1."""
        return self._scheduler.kv_cache_usage

    def has_work(self) -> bool:
        """Whether a step would do anything. Without any, `on_grammar` is called when there is some again."""
        is_open = self._scheduler.num_requests > self._grammars.num_pending
        return is_open or self._grammars.has_finished or bool(self._under_way)

    def on_grammar(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, in another thread, when a request's grammar was compiled."""
        self._grammars.compiler.on_finished = wake

    def on_fault(self, report: Callable[[EngineError], None]) -> None:
        """Have `report` called, in another thread, when no step can be computed any more."""
        if isinstance(self._runner, HasProcesses):
            self._runner.on_fault(report)

    def close(self) -> None:
        """End the processes that the runner started."""
        if isinstance(self._steps, StepThread):
            self._steps.close()
        if isinstance(self._runner, HasProcesses):
            self._runner.close()

    def warm_up(self) -> None:
        """Prepare in the background what requests need that have a grammar."""
        self._grammars.compiler.warm_up()

    def add(self, request: GenerateRequest) -> RequestOutput | None:
        """Take a request up. Returns an output only where that is all there will be: it is refused (error), or it is
        a resumed request that had already reached its end.
        """
        try:
            self._check(request)
            state = Request.from_message(request, now_s=self._clock())
            if self._suspects.must_refuse(state.key, request):
                return _refuse_poison(request.request_id)
            self._suspect(state)
            self._grammars.begin(state)
        except RequestError as error:
            return _refusal(request.request_id, error)
        self._hold(())
        return None if self._scheduler.add(state) else self._close_resumed(state)

    def abort(self, request_ids: Iterable[str], finish_reason: str = "abort") -> list[RequestOutput]:
        """Drop these requests and free their blocks at once. Unknown ids are ignored.

        A step under way may still compute for them; what it writes is over before a later step writes there.
        """
        aborted = self._drop(request_ids, finish_reason)
        return [RequestOutput(request_id=request.request_id, finish_reason=finish_reason) for request in aborted]

    def step(self) -> list[RequestOutput]:
        """Compute one step. What the runner raises is a fault of the engine and goes through to the caller.

        With async scheduling: begin a step, then return the outputs of the one before it. Where the next step depends
        on those, none is begun.
        """
        closed = self._take_grammars()
        planned = self._scheduler.schedule(self._clock(), is_ahead=bool(self._under_way))
        due = self._under_way[0].planned if self._under_way else planned
        if due is None:
            return closed
        # In hand until all of the step is done: whatever fails here, the next engine knows whose it was.
        self._hold(planned.requests if planned else (), self._allowance.allow(due.step.num_tokens))
        if planned is not None:
            self._submit(planned)
            if self._steps is not None and len(self._under_way) == 1:
                return closed
        return closed + self._finish()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; refused (False) while blocks are in use."""
        return self._scheduler.reset_prefix_cache()

    def _suspect(self, request: Request) -> None:
        """See that a request that was in hand when an engine failed is tried alone."""
        suspicion = self._suspects.find(request.key)
        if suspicion is None:
            return
        # Who was cleared before and is here again stays alone to its end.
        cleared_at = suspicion.num_output_tokens + TRIAL_TOKENS if suspicion.num_faults == 1 else math.inf
        if request.num_output_tokens < cleared_at:
            request.num_faults = suspicion.num_faults
            request.trial_end = cleared_at

    def _submit(self, planned: PlannedStep) -> None:
        step = planned.step
        self._grammars.add_masks(step, planned.requests)
        wait = self._steps.submit(step) if self._steps else functools.partial(self._runner.execute, step)
        self._under_way.append(_StepUnderWay(planned, wait, self._clock()))

    def _finish(self) -> list[RequestOutput]:
        """Wait for the oldest step under way and take its result in."""
        oldest = self._under_way.popleft()
        started_s = max(oldest.submitted_s, self._last_result_s)
        result = oldest.wait()
        self._last_result_s = self._clock()
        step, seconds = oldest.planned.step, self._last_result_s - started_s
        self._scheduler.observe(step, seconds)
        self._allowance.observe(step.num_tokens, seconds)
        outputs = self._update(oldest.planned, result)
        self._hold(())
        return outputs

    def _hold(self, requests: Iterable[Request], allowance_s: float | None = None) -> None:
        """Tell the journal whose requests are in hand: these, those of steps under way, and those whose grammars are
        being compiled.
        """
        under_way = [request for some in self._under_way for request in some.planned.requests]
        # Each once: a request is in both of two steps under way.
        held = dict.fromkeys([*requests, *under_way, *self._grammars.pending])
        in_hand = [(request.key, request.num_output_tokens) for request in held]
        if allowance_s is None:
            self._journal.hold(in_hand)
        else:
            self._journal.work(in_hand, allowance_s)

    def _take_grammars(self) -> list[RequestOutput]:
        """Let requests go on whose grammar was compiled; the outputs of those that end here."""
        outputs = []
        for compiled in self._grammars.take_finished():
            if compiled.error is not None:
                self._drop([compiled.request_id], "error")
                outputs.append(_refusal(compiled.request_id, compiled.error))
            elif compiled.state is not None:
                finished = self._scheduler.start_grammar(compiled.request_id, compiled.state)
                outputs += [self._close_resumed(finished)] if finished else []
        return outputs

    def _drop(self, request_ids: Iterable[str], finish_reason: str) -> list[Request]:
        now_s = self._clock()
        dropped = self._scheduler.abort(request_ids, finish_reason)
        for request in dropped:
            self._grammars.discard(request.request_id)
            self._suspects.forget(request.key)
            self.metrics.record_finish(request, now_s)
        return dropped

    def _update(self, planned: PlannedStep, result: StepOutput) -> list[RequestOutput]:
        updates: list[Update] = self._scheduler.update(planned, result)
        self.metrics.record_step(planned.stats, updates, self._clock())
        for request, output in updates:
            if output.finish_reason is not None:
                self._suspects.forget(request.key)
        return [output for _, output in updates]

    def _check(self, request: GenerateRequest) -> None:
        if request.request_id in self._scheduler:
            raise RequestError(f"request_id {request.request_id!r} is already in flight", "request_id")
        self._admission.check(request)

    def _close_resumed(self, request: Request) -> RequestOutput:
        self.metrics.record_finish(request, self._clock())
        self._suspects.forget(request.key)
        return RequestOutput(
            request_id=request.request_id,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            ends_in_text=request.ends_in_text,
        )


def _make_steps(runner: Runner) -> TakesStepsAhead:
    return runner if isinstance(runner, TakesStepsAhead) else StepThread(runner)


def _refusal(request_id: str, error: RequestError) -> RequestOutput:
    return RequestOutput(request_id=request_id, finish_reason="error", error=str(error), error_param=error.param)


def _refuse_poison(request_id: str) -> RequestOutput:
    error = "the engine failed each time it worked on this request, which is not tried again"
    return RequestOutput(request_id=request_id, finish_reason="error", error=error, is_poison=True)


def _effective_info(config: EngineConfig, info: RunnerInfo, max_model_len: int) -> RunnerInfo:
    if max_model_len < info.max_model_len:
        logger.warning(
            "kv cache is smaller than the context max_model_len=%d kv_cache_tokens=%d",
            info.max_model_len,
            max_model_len,
        )
    eos_token_ids = info.eos_token_ids | frozenset(config.extra_eos_token_ids)
    return dataclasses.replace(info, max_model_len=max_model_len, eos_token_ids=eos_token_ids)
