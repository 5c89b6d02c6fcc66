"""One token budget a step, over running requests in order, then over waiting ones.

There is no prefill mode and no decode mode: a request has known tokens and computed tokens, and a step computes some
of the difference. Leaves the bookkeeping of blocks to `engine.cache`, order and victims to the policy, the end of a
request to the stop rule, time and counting to `engine.core`.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable

from engine.cache.block_pool import BlockPool
from engine.cache.block_tables import BlockTables
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.grammar.state import GrammarState
from engine.messages import TokenLogprobs
from engine.queue_load import QueueLoad
from engine.request import Request, RequestStatus
from engine.scheduler.drafts import DraftPlanner
from engine.scheduler.outputs import Update, take_tokens
from engine.scheduler.plan import PlannedStep, StepPlan, StepStats
from engine.scheduler.policy import POLICIES
from engine.scheduler.prompt_time import PromptTime
from engine.scheduler.quarantine import Quarantine
from engine.scheduler.recent_tenants import RecentTenants
from engine.scheduler.step_shares import StepShares
from engine.scheduler.step_time import StepTime
from engine.scheduler.stop import StopRule
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

logger = logging.getLogger(__name__)

SHARED_STEP_PART = 0.25
"""Of `max_step_ms`, for steps while there are several tenants or were lately: one who comes back waits for no more."""


class Scheduler:
    """Holds every unfinished request. `info.max_model_len` must not exceed what the pool can hold."""

    def __init__(self, config: EngineConfig, info: RunnerInfo) -> None:
        _check(config, info)
        policy = POLICIES[config.scheduling_policy]
        self._config = config
        self._pick_victim = policy.pick_victim
        self._waiting = policy.make_queue()
        self._quarantine = Quarantine()
        self._running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._arrivals = itertools.count()
        self._stop_rule = StopRule(info.eos_token_ids, info.max_model_len)
        self._tables = BlockTables(
            BlockPool(info.num_blocks), info.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self._step_time = StepTime(info.context_cost)
        self._drafts = (
            DraftPlanner(
                config.speculation,
                self._tables,
                self._step_time.decoding,
                config.max_num_seqs,
                info.max_model_len,
            )
            if config.speculation
            else None
        )
        self._num_deferred = 0
        self._is_blocked = False
        self._shares = StepShares(None, 0, {})
        self._recent_tenants = RecentTenants()
        self._prompting: Counter[str] = Counter()  # prompts of each tenant that run and are still to be planned
        self._prompt_time = PromptTime(None, self._step_time)
        self._stats = StepStats()  # of the step that is being planned
        self.queue_load = self._measure_load()

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running) + self._quarantine.num_on_trial

    @property
    def num_waiting(self) -> int:
        """Requests that wait, preempted and deferred ones and suspects included."""
        return len(self._waiting) + len(self._quarantine)

    @property
    def num_deferred(self) -> int:
        """Those of the waiting that let another compute their prefix first, await their grammar or their share."""
        return min(self._num_deferred, len(self._waiting))

    @property
    def num_requests(self) -> int:
        """Unfinished requests."""
        return len(self._requests)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks in use, 0 … 1."""
        return self._tables.pool.num_used / self._tables.pool.num_blocks

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request: Request) -> bool:
        """Let the request wait for its turn; False where it is finished as it stands (resumed past its end)."""
        if request.is_resumed and not request.awaits_grammar and self._stop_rule.apply(request):
            return False
        request.arrival_index = next(self._arrivals)
        self._requests[request.request_id] = request
        self._tables.add(request)
        if request.num_faults:
            self._quarantine.push(request)
        else:
            self._waiting.push(request)
        self.queue_load = self._measure_load()
        return True

    def start_grammar(self, request_id: str, grammar: GrammarState) -> Request | None:
        """Let a request go on that awaited its grammar; returns it where that shows it to be finished (resumed past
        its end).
        """
        request = self._requests[request_id]
        request.grammar = grammar
        if not (request.is_resumed and self._stop_rule.apply(request)):
            return None
        self._stop_waiting(request)
        self._retire([request])
        return request

    def abort(self, request_ids: Iterable[str], finish_reason: str = "abort") -> list[Request]:
        """Drop these requests and free their blocks now. Unknown ids are ignored."""
        known_ids = dict.fromkeys(request_id for request_id in request_ids if request_id in self._requests)
        aborted = [self._requests[request_id] for request_id in known_ids]
        for request in aborted:
            if request.status is not RequestStatus.RUNNING:
                self._stop_waiting(request)
            request.finish(finish_reason)
        self._retire(aborted)
        return aborted

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False while blocks are in use."""
        return self._tables.pool.reset()

    def schedule(self, now_s: float, *, is_ahead: bool = False) -> PlannedStep | None:
        """Plan the next step; None where nobody has anything to compute. With `is_ahead` a step is under way, and None
        may also mean that its result has to be known first.
        """
        if is_ahead and not self._can_plan_ahead():
            return None
        self._stats = StepStats()
        self._num_deferred = 0
        plan = StepPlan(self._config.max_num_batched_tokens)
        self._shares = self._make_shares(now_s)
        is_trial = self._quarantine.take_turn(bool(self._running or self._waiting))
        self._prompting = Counter(request.tenant for request in self._running if request.num_left_ahead > 1)
        has_prompts = is_trial or self._waiting or self._prompting
        self._prompt_time = self._make_prompt_time() if has_prompts else PromptTime(None, self._step_time)
        if not (is_trial and self._plan_trial(plan, now_s)):
            self._plan_running(plan)
            if not self._stats.num_preemptions:
                self._plan_waiting(plan, now_s)
        if self._drafts is not None:
            self._drafts.add_drafts(plan, self._requests)
        self._is_blocked = len(self._waiting) > self._num_deferred
        self.queue_load = self._measure_load()
        step = plan.finish()
        return None if step is None else self._expect(step)

    def observe(self, step: StepInput, seconds: float) -> None:
        """Learn from the time that a step took to execute."""
        self._step_time.observe(step, seconds)

    def update(self, planned: PlannedStep, result: StepOutput) -> list[Update]:
        """Take in what the runner computed; returns what there is to deliver, in row order.

        What was computed ahead for a request that has ended in the meantime is dropped. Its blocks may be another's by
        now, who writes into them in a later step.
        """
        updates = []
        for index, (row, request) in enumerate(zip(planned.step.rows, planned.requests, strict=True)):
            if request.is_finished:
                continue
            request.num_tokens_under_way -= row.num_scheduled_tokens
            request.num_awaited_tokens -= row.samples
            token_ids = result.token_ids[index]
            num_accepted = min(len(token_ids) - 1, len(row.draft_token_ids)) if row.draft_token_ids else 0
            request.num_computed_tokens += row.num_scheduled_tokens - len(row.draft_token_ids) + num_accepted
            prompt_logprobs = result.prompt_logprobs[index] if result.prompt_logprobs else None
            self._take_prompt(request, prompt_logprobs, planned.stats)
            if token_ids:
                logprobs = result.logprobs[index] if result.logprobs else None
                updates.append((request, take_tokens(request, token_ids, logprobs, self._stop_rule)))
                self._waiting.charge(request, 0, len(token_ids))
            if row.draft_token_ids and self._drafts is not None:
                self._drafts.take(request, row, num_accepted, planned.stats)
            self._tables.register_computed(request)
        self._retire([request for request, output in updates if output.finish_reason is not None])
        self._end_trial()
        return updates

    def _can_plan_ahead(self) -> bool:
        """Whether the next step is the same whatever tokens come: no suspect awaits its trial's end, no grammar has to
        see them, and nobody must give way, who might end by himself.
        """
        if self._quarantine or self._quarantine.num_on_trial:
            return False
        awaiting = [request for request in self._running if request.num_awaited_tokens]
        if any(request.sampling.grammar is not None for request in awaiting):
            return False
        num_lacking = sum(self._tables.num_slots(request) <= request.num_computed_ahead for request in self._running)
        return num_lacking <= self._tables.pool.num_free

    def _expect(self, step: StepInput) -> PlannedStep:
        """Count what the step's requests will have when it is done."""
        requests = [self._requests[row.request_id] for row in step.rows]
        for row, request in zip(step.rows, requests, strict=True):
            request.num_tokens_under_way += row.num_scheduled_tokens
            request.num_awaited_tokens += row.samples
        return PlannedStep(step, requests, self._stats)

    def _plan_trial(self, plan: StepPlan, now_s: float) -> bool:
        """A step for the suspect on trial alone, whoever has to give way for it; False where there is none to run."""
        request = self._quarantine.pick()
        if request is None:
            return False
        if request.status is not RequestStatus.RUNNING:
            prefix = self._tables.find_prefix(request)
            while not self._tables.admit(request, prefix):
                if not self._running:
                    return False
                self._preempt(self._pick_victim(self._running), plan)
            self._quarantine.begin(request)
            self._start(request, len(prefix) * self._tables.block_size, now_s)
        budget = min(plan.budget, self._prompt_time.left(request.num_computed_tokens))
        num_tokens = self._num_schedulable(request.num_left_ahead, budget)
        while not self._tables.grow(request, request.num_computed_tokens + num_tokens):
            self._preempt(self._pick_victim(self._running), plan)
        plan.add(self._make_row(request, num_tokens))
        return True

    def _end_trial(self) -> None:
        # It goes on with the others as soon as there is room in the batch.
        if len(self._running) < self._config.max_num_seqs and (request := self._quarantine.release()) is not None:
            self._running.append(request)

    def _stop_waiting(self, request: Request) -> None:
        (self._quarantine if request.num_faults else self._waiting).remove(request)

    def _make_shares(self, now_s: float) -> StepShares:
        limit = self._config.fair_step_tokens
        # A prompt that must be computed at once cannot be cut to a share.
        if not limit or not self._config.enable_chunked_prefill:
            return StepShares(None, 0, {})
        crowds = self._waiting.count(self._running)
        self._recent_tenants.note(crowds, now_s)
        return StepShares(self._waiting.pick_favoured(crowds), limit, crowds)

    def _make_prompt_time(self) -> PromptTime:
        """What is left for prompts of a step that streams wait for, or that another tenant may come to wait for."""
        limit_s = self._config.max_step_ms / 1000
        decoding = Counter(request.tenant for request in self._running if request.num_left_ahead == 1)
        if self._recent_tenants.are_several:
            limit_s *= SHARED_STEP_PART
        elif not decoding:
            limit_s = 0.0
        if not limit_s or not self._config.enable_chunked_prefill:
            return PromptTime(None, self._step_time)
        num_rows = sum(min(count, self._shares.left(tenant)) for tenant, count in decoding.items())
        return PromptTime(limit_s - self._step_time.decoding.expect(num_rows), self._step_time, num_rows)

    def _plan_running(self, plan: StepPlan) -> None:
        for request in tuple(self._running):
            if plan.budget <= 0:
                return
            if request.status is not RequestStatus.RUNNING:  # it gave way to one before it
                continue
            if request.num_awaited_tokens and self._stop_rule.is_certain(request):
                continue
            num_left = request.num_left_ahead
            budget = min(self._running_budget(request, num_left, plan), self._shares.left(request.tenant))
            if budget <= 0:
                continue
            num_tokens = self._num_schedulable(num_left, budget)
            if num_tokens and self._make_room(request, num_tokens, plan):
                self._plan_row(request, num_tokens, plan)

    def _running_budget(self, request: Request, num_left: int, plan: StepPlan) -> int:
        """A long prompt leaves half to one of another tenant that runs, too, or that waits, has a place and whose
        tenant was served no more.
        """
        if num_left <= 1 or not self._config.enable_chunked_prefill:
            return plan.budget
        self._prompting[request.tenant] -= 1
        budget = min(plan.budget, self._prompt_time.left(request.num_computed_ahead))
        return (budget + 1) // 2 if budget > 1 and self._leaves_half(request) else budget

    def _leaves_half(self, request: Request) -> bool:
        others = (tenant for tenant, count in self._prompting.items() if count and self._shares.is_whole(tenant))
        if self._waiting.must_share(request, others):
            return True
        has_place = self._waiting and self.num_running < self._config.max_num_seqs
        head = self._waiting.peek(self._shares.is_left) if has_place else None
        return head is not None and self._waiting.is_due_before(request, head)

    def _plan_waiting(self, plan: StepPlan, now_s: float) -> None:
        deferred: list[Request] = []
        while self._waiting and plan.budget > 0 and self.num_running < self._config.max_num_seqs:
            request = self._waiting.peek(self._shares.is_left)
            if request is None:
                break
            # A preempted one stands before all others, but not in their way while its tenant's share is used up.
            is_out_of_turn = request.status is RequestStatus.PREEMPTED and self._shares.left(request.tenant) <= 0
            if request.awaits_grammar or is_out_of_turn:
                self._waiting.pop(request)
                deferred.append(request)
                continue
            prefix = self._tables.find_prefix(request)
            if self._tables.is_being_computed(request, len(prefix)):
                self._waiting.pop(request)
                deferred.append(request)
            elif not self._admit(request, prefix, plan, now_s):
                break
        self._num_deferred = len(deferred)
        for request in reversed(deferred):
            self._waiting.push_front(request)

    def _admit(self, request: Request, prefix: list[int], plan: StepPlan, now_s: float) -> bool:
        num_cached_tokens = len(prefix) * self._tables.block_size
        budget = min(plan.budget, self._shares.left(request.tenant))
        num_left = request.num_tokens_ahead - num_cached_tokens
        if num_left > 1:
            budget = min(budget, self._prompt_time.left(num_cached_tokens))
        num_tokens = self._num_schedulable(num_left, budget) if budget > 0 else 0
        if not num_tokens or not self._tables.admit(request, prefix):
            return False
        self._waiting.pop(request)
        self._running.append(request)
        self._start(request, num_cached_tokens, now_s)
        self._plan_row(request, num_tokens, plan)
        return True

    def _plan_row(self, request: Request, num_tokens: int, plan: StepPlan) -> None:
        row = self._make_row(request, num_tokens)
        plan.add(row)
        self._shares.take(request.tenant, num_tokens)
        if not row.is_decoding:
            self._prompt_time.take(num_tokens, row.num_computed_tokens)

    def _start(self, request: Request, num_cached_tokens: int, now_s: float) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(num_cached_tokens, request.num_prompt_tokens)
            request.timeline.scheduled_s = now_s
            self._waiting.charge(request, request.num_tokens - num_cached_tokens, 0)
        if self._tables.can_read_cache(request):
            self._stats.num_queried_tokens += request.num_tokens
            self._stats.num_hit_tokens += num_cached_tokens

    def _num_schedulable(self, num_left: int, budget: int) -> int:
        if num_left == 1:
            return 1
        if not self._config.enable_chunked_prefill:
            return num_left if num_left <= budget else 0
        threshold = self._config.long_prefill_token_threshold
        if threshold > 0 and len(self._requests) > 1:
            num_left = min(num_left, threshold)
        return min(num_left, budget)

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        while not self._tables.grow(request, request.num_computed_ahead + num_tokens):
            victim = self._pick_victim(self._running)
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, plan: StepPlan) -> None:
        assert not victim.num_tokens_under_way, "preempted while a step computes for it"
        logger.debug("preempted request_id=%s num_computed=%d", victim.request_id, victim.num_computed_tokens)
        plan.drop(victim.request_id)
        self._running.remove(victim)
        self._tables.release(victim)
        victim.preempt()
        self._waiting.push_front(victim)
        self._stats.num_preemptions += 1

    def _make_row(self, request: Request, num_tokens: int) -> StepRow:
        num_computed_tokens = request.num_computed_ahead
        return StepRow(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            num_computed_tokens=num_computed_tokens,
            num_scheduled_tokens=num_tokens,
            block_ids=self._tables.block_ids(request),
            sampling=request.sampling,
            samples=num_computed_tokens + num_tokens == request.num_tokens_ahead,
            wants_prompt_logprobs=(
                request.prompt_logprobs is not None and num_computed_tokens < request.num_prompt_tokens - 1
            ),
            awaits_token=request.num_awaited_tokens > 0,
        )

    def _take_prompt(self, request: Request, prompt_logprobs: list[TokenLogprobs] | None, stats: StepStats) -> None:
        if request.num_counted_prompt_tokens < request.num_prompt_tokens:
            self._count_prompt(request, stats)
        if prompt_logprobs and request.prompt_logprobs is not None:
            request.prompt_logprobs.extend(prompt_logprobs)

    def _count_prompt(self, request: Request, stats: StepStats) -> None:
        num_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        stats.num_prompt_tokens += max(0, num_tokens - request.num_counted_prompt_tokens)
        request.num_counted_prompt_tokens = max(num_tokens, request.num_counted_prompt_tokens)

    def _retire(self, finished: list[Request]) -> None:
        if not finished:
            return
        for request in finished:
            self._tables.remove(request)
            del self._requests[request.request_id]
        self._running = [request for request in self._running if not request.is_finished]
        self._quarantine.release_finished()
        if not self._requests:
            self._waiting.settle()
        self.queue_load = self._measure_load()

    def _measure_load(self) -> QueueLoad:
        # While somebody waits for blocks or budget, a free place is not one that the next to come can have.
        is_blocked = self._is_blocked and self.num_waiting > 0
        num_free_seats = 0 if is_blocked else self._config.max_num_seqs - len(self._running)
        return QueueLoad(self.num_waiting, self._waiting.num_tokens, num_free_seats)


def _check(config: EngineConfig, info: RunnerInfo) -> None:
    if config.scheduling_policy not in POLICIES:
        raise ConfigError(f"scheduling_policy {config.scheduling_policy!r} is not one of {', '.join(POLICIES)}")
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}, but it must be at least 1")
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < info.max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens {config.max_num_batched_tokens} is less than max_model_len {info.max_model_len}: "
            "without chunked prefill a whole prompt must fit in a step; raise the one, lower the other, "
            "or enable chunked prefill"
        )
