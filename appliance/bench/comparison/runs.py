"""Runs every load on every server, interleaved: each repetition has all servers in turn, and the order rotates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from appliance.bench.comparison.chat_prompts import ChatPrompts
from appliance.bench.comparison.figures import PERCENTS, figures_of
from appliance.bench.comparison.loads import Load, Phase, make_warmup
from appliance.bench.comparison.machine import Usage, Watch
from appliance.bench.http_client import HttpServer
from appliance.bench.load import LoadResult, run_load
from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.bench.request_body import BACKENDS, BodyOptions
from appliance.bench.summary import Summary, summarize

_PATH = BACKENDS["openai-chat"].path
_WARMUP_SEED = 1_000_003  # its text is never measured


@dataclass(frozen=True)
class Target:
    """A server under comparison; ``pid`` is the top of its process tree, if that is on this machine and known."""

    name: str
    server: HttpServer
    model: str
    pid: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> BodyOptions:
        """What its requests have in common."""
        return BodyOptions(self.model, is_chat=True, extra=self.extra_body)


@dataclass(frozen=True)
class Run:
    """One load on one server, once."""

    load: str
    target: str
    repetition: int
    seed: int
    figures: Mapping[str, float]
    usage: Usage
    num_completed: int
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_wanted_tokens: int
    errors: Mapping[str, int]
    is_spoilt: bool

    @property
    def is_clean(self) -> bool:
        """Whether its figures mean something: nobody else used the machine, every request was answered."""
        return not self.is_spoilt and not self.num_failed

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return asdict(self) | {"figures": dict(self.figures), "errors": dict(self.errors)}


@dataclass(frozen=True)
class RunOptions:
    """``spoilt_cores`` is how many cores others may use; a round with a spoilt run is tried again so often."""

    repetitions: int = 3
    spoilt_cores: float = 0.2
    num_retries: int = 0
    timeout_s: float = 600.0
    goodput: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0


LoadMaker = Callable[[int], Load]  # by seed


class Comparison:
    """Runs everything; ``on_run`` hears of each run when it has ended."""

    def __init__(
        self,
        targets: Sequence[Target],
        makers: Sequence[LoadMaker],
        tokenizer: PromptTokenizer,
        options: RunOptions,
        on_run: Callable[[Run], None],
    ) -> None:
        self._targets = targets
        self._makers = makers
        self._tokenizer = tokenizer
        self._options = options
        self._on_run = on_run
        self._next_seed = options.seed

    async def run(self) -> list[Run]:
        """All repetitions of all loads."""
        runs: list[Run] = []
        for repetition in range(self._options.repetitions):
            for maker in self._makers:
                runs += await self._run_clean_round(maker, repetition)
        return runs

    async def _run_clean_round(self, maker: LoadMaker, repetition: int) -> list[Run]:
        """One load on every server. Prompts are new each time, as the old ones are in the servers' caches."""
        runs: list[Run] = []
        for _ in range(1 + self._options.num_retries):
            seed, self._next_seed = self._next_seed, self._next_seed + 1
            runs = await self._run_round(maker(seed), repetition, seed)
            if not any(run.is_spoilt for run in runs):
                break
        return runs

    async def _run_round(self, load: Load, repetition: int, seed: int) -> list[Run]:
        first = repetition % len(self._targets)
        runs = []
        for target in (*self._targets[first:], *self._targets[:first]):
            run = await self._run_one(load, target, repetition, seed)
            self._on_run(run)
            runs.append(run)
        return runs

    async def _run_one(self, load: Load, target: Target, repetition: int, seed: int) -> Run:
        warmup = make_warmup(ChatPrompts(self._tokenizer, seed + _WARMUP_SEED), load)
        await self._send(warmup, target)
        watch = Watch(target.pid)
        summaries = {
            phase.name: summarize(await self._send(phase, target), PERCENTS, self._options.goodput)
            for phase in load.phases
        }
        return self._describe(load, target, repetition, seed, summaries, watch.stop())

    async def _send(self, phase: Phase, target: Target) -> LoadResult:
        requests = phase.prepare(_PATH, target.body)
        return await run_load(target.server, requests, phase.max_concurrency, self._options.timeout_s)

    def _describe(
        self, load: Load, target: Target, repetition: int, seed: int, summaries: Mapping[str, Summary], usage: Usage
    ) -> Run:
        phases = summaries.values()
        limit = self._options.spoilt_cores
        has_answers = all(summary.num_completed for summary in phases)
        return Run(
            load=load.name,
            target=target.name,
            repetition=repetition,
            seed=seed,
            figures={figure.key: figure.read(summaries) for figure in figures_of(load.name)} if has_answers else {},
            usage=usage,
            num_completed=sum(summary.num_completed for summary in phases),
            num_failed=sum(summary.num_failed for summary in phases),
            num_prompt_tokens=sum(summary.num_prompt_tokens for summary in phases),
            num_output_tokens=sum(summary.num_output_tokens for summary in phases),
            num_wanted_tokens=sum(chat.num_output_tokens for phase in load.phases for chat in phase.chats),
            errors={error: count for summary in phases for error, count in summary.errors.items()},
            is_spoilt=usage.stolen > limit or (usage.other or 0.0) > limit,
        )
