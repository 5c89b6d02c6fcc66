"""`breadbox bench drafts`: what --speculative-config brings, on text that repeats itself and on text that doesn't.

One model, in process, with drafts and without in turn; the answers must be the same to the token.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.baked_model import BakedModel
from appliance.bench.flag_types import whole
from appliance.bench.in_process import add_engine_flags, load_config, load_engine_settings
from appliance.bench.progress import Progress
from appliance.bench.real_text import corpus_words
from appliance.bench.result_file import write_record
from appliance.bench.speculation import SpeculationStats, compare, parse_counters
from appliance.errors import ApplianceError
from appliance.text.chat_template import ChatTemplate
from appliance.text.tokenizer import Tokenizer
from engine.config import EngineConfig, SpeculationConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, SamplingParams
from engine.step import Runner

DEFAULT = SpeculationConfig(num_speculative_tokens=8)
_WORDS = 120


@dataclass(frozen=True)
class Load:
    """What is asked for, and how tokens are drawn."""

    name: str
    question: str
    temperature: float
    has_text: bool = True


LOADS = (
    Load("copy", "Repeat this text word for word:", 0.0),
    Load("edit", "Write this text again with every comma left out:", 0.0),
    Load("summary", "Sum this text up in a few sentences:", 0.0),
    Load("free, greedy", "Write a long story about a lighthouse keeper and her dog.", 0.0, has_text=False),
    Load("free, sampled", "Write a long story about a lighthouse keeper and her dog.", 1.0, has_text=False),
)


@dataclass
class Result:
    """One load at one batch size; a rate is tokens a second after the first ones."""

    load: str
    num_rows: int
    rates_without: list[float] = field(default_factory=list)
    rates_with: list[float] = field(default_factory=list)
    stats: SpeculationStats | None = None

    @property
    def ratio(self) -> float:
        """How many times faster it is with drafts, by the medians."""
        return statistics.median(self.rates_with) / statistics.median(self.rates_without)

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        stats = None if self.stats is None else dataclasses.asdict(self.stats)
        return dataclasses.asdict(self) | {"ratio": self.ratio, "stats": stats}


def add_drafts_flags(parser: argparse.ArgumentParser) -> None:
    """Loads and repetitions."""
    add = parser.add_argument_group("loads").add_argument
    add("--batch-sizes", type=whole(1), nargs="+", default=[1], metavar="N", help="requests at once (default 1)")
    add("--output-len", type=whole(8), default=192, metavar="N", help="tokens of an answer, at most (default 192)")
    add("--repeat", type=whole(1), default=3, metavar="N", help="runs of each, with and without in turn (default 3)")
    add("--output-json", type=Path, metavar="FILE", help="write the result to a file")
    add("--no-progress", action="store_true", help="no progress bar")
    add_engine_flags(parser)


def run_drafts(args: argparse.Namespace) -> int:
    """Measure, print, save. Raises ApplianceError, ConfigError."""
    from engine.runner import make_runner  # torch is only for those who compute

    config = load_config(load_engine_settings(args), prefix_caching=False)
    bench = DraftsBench(config, make_runner(config), PromptMaker(BakedModel(config.model_path)), args.output_len)
    results = [Result(load.name, num_rows) for num_rows in args.batch_sizes for load in LOADS]
    loads = {load.name: load for load in LOADS}
    with Progress("runs", len(results) * args.repeat, is_shown=not args.no_progress) as progress:
        for result in results:
            for _ in range(args.repeat):
                bench.measure(loads[result.load], result)
                progress.step()
    print(format_drafts(results, bench.speculation), flush=True)
    if args.output_json:
        write_record(args.output_json, {"results": [result.as_json() for result in results]})
    return 0


class PromptMaker:
    """Chats of the model; row i's text is another than row j's."""

    def __init__(self, baked: BakedModel) -> None:
        self._tokenizer = Tokenizer.load(baked)
        self._template = ChatTemplate(baked.chat_template or "", baked.tokenizer_config, self._tokenizer)

    def make(self, load: Load, row: int) -> list[int]:
        """Token ids of a prompt."""
        words = corpus_words()[1000 + row * _WORDS : 1000 + (row + 1) * _WORDS]
        content = f"{load.question}\n\n{' '.join(words)}" if load.has_text else load.question
        rendered = self._template.render([{"role": "user", "content": content}])
        return self._tokenizer.encode_chat(rendered)


class DraftsBench:
    """One loaded model."""

    def __init__(self, config: EngineConfig, runner: Runner, prompts: PromptMaker, output_len: int) -> None:
        self.speculation = config.speculation or DEFAULT
        self._without = EngineCore(dataclasses.replace(config, speculation=None), runner)
        self._with = EngineCore(dataclasses.replace(config, speculation=self.speculation), runner)
        self._prompts = prompts
        self._output_len = output_len

    def measure(self, load: Load, result: Result) -> None:
        """One run without drafts, one with. Raises ApplianceError where they disagree."""
        requests = [
            GenerateRequest(
                request_id=str(row),
                prompt_token_ids=self._prompts.make(load, row),
                sampling=SamplingParams(max_tokens=self._output_len, seed=row, temperature=load.temperature),
            )
            for row in range(result.num_rows)
        ]
        before = parse_counters(self._with.metrics.render())
        expected, rate_without = generate_timed(self._without, requests)
        found, rate_with = generate_timed(self._with, requests)
        if found != expected:
            raise ApplianceError(f"{load.name}: the tokens with drafts are not those without")
        result.rates_without.append(rate_without)
        result.rates_with.append(rate_with)
        result.stats = compare(before, parse_counters(self._with.metrics.render()))


def generate_timed(core: EngineCore, requests: Sequence[GenerateRequest]) -> tuple[dict[str, list[int]], float]:
    """Run to the end; output ids, and tokens a second from when every request had its first one."""
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        if (refused := core.add(request)) is not None:
            raise ApplianceError(f"the engine refused a request: {refused.error}")
    started_s, num_before = time.perf_counter(), 0
    is_prefilled = False
    while core.has_work():
        for output in core.step():
            found[output.request_id] += output.token_ids
        if not is_prefilled and all(found.values()):
            is_prefilled, started_s = True, time.perf_counter()
            num_before = sum(map(len, found.values()))
    num_tokens = sum(map(len, found.values())) - num_before
    return found, num_tokens / (time.perf_counter() - started_s)


def format_drafts(results: Sequence[Result], speculation: SpeculationConfig) -> str:
    """A table for people."""
    lines = [
        f"n-gram drafts of up to {speculation.num_speculative_tokens} tokens, matches of "
        f"{speculation.prompt_lookup_min} to {speculation.prompt_lookup_max}; tokens are the same with and without",
        f"{'load':<14} {'rows':>4} {'tok/s without':>14} {'tok/s with':>11} {'ratio':>6}  {'drafted':>8} {'right':>6}",
    ]
    for result in results:
        without, with_ = statistics.median(result.rates_without), statistics.median(result.rates_with)
        stats = result.stats
        drafted, right = (stats.num_draft_tokens, f"{stats.acceptance_rate:.0%}") if stats else (0, "-")
        lines.append(
            f"{result.load:<14} {result.num_rows:>4} {without:>14.1f} {with_:>11.1f} {result.ratio:>6.2f}"
            f"  {drafted:>8} {right:>6}"
        )
    return "\n".join(lines)
