"""`breadbox bench latency`: how long one batch takes, again and again, in process."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

from appliance.bench.flag_types import whole
from appliance.bench.in_process import (
    Generated,
    add_engine_flags,
    generate,
    load_core,
    load_engine_settings,
    make_requests,
)
from appliance.bench.progress import Progress
from appliance.bench.result_file import write_record
from appliance.bench.statistics import describe, percent_label
from engine.core import EngineCore
from engine.messages import GenerateRequest

PERCENTS = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)


def add_latency_flags(parser: argparse.ArgumentParser) -> None:
    """vLLM's names and defaults."""
    group = parser.add_argument_group("batch")
    add = group.add_argument
    add("--input-len", type=whole(1), default=32, metavar="N", help="tokens of a prompt (default 32)")
    add("--output-len", type=whole(1), default=128, metavar="N", help="tokens to generate for each (default 128)")
    add("--batch-size", type=whole(1), default=8, metavar="N", help="prompts at once (default 8)")
    add("--n", type=whole(1), default=1, metavar="N", help="answers to each prompt (default 1)")
    add("--num-iters-warmup", type=whole(0), default=10, metavar="N", help="unmeasured batches before (default 10)")
    add("--num-iters", type=whole(1), default=30, metavar="N", help="measured batches (default 30)")
    add("--output-json", type=Path, metavar="FILE", help="write the result to a file")
    add("--disable-detokenize", action="store_true", help="accepted; token ids are never made text here")
    add("--disable-tqdm", "--no-progress", dest="no_progress", action="store_true", help="no progress bar")
    add_engine_flags(parser)


@dataclass(frozen=True)
class Batch:
    """Random prompts of one length, new ones each time."""

    size: int
    input_len: int
    output_len: int
    n: int

    def make(self, rng: random.Random, vocab_size: int) -> list[GenerateRequest]:
        """Its requests."""
        prompts = [[rng.randrange(vocab_size) for _ in range(self.input_len)] for _ in range(self.size)]
        seed = rng.getrandbits(32)
        return [
            request
            for index, prompt in enumerate(prompts)
            for request in make_requests(f"{index}", prompt, self.output_len, self.n, seed + index)
        ]


def run_latency(args: argparse.Namespace) -> int:
    """Measure, print, save. Raises ApplianceError, ConfigError."""
    loaded = load_engine_settings(args)
    core = load_core(loaded, prefix_caching=False)
    batch = Batch(args.batch_size, args.input_len, args.output_len, args.n)
    rng = random.Random(loaded.settings.seed)  # noqa: S311 - prompts, not secrets
    _repeat(core, batch, rng, args.num_iters_warmup, "warm-up batches", not args.no_progress)
    results = _repeat(core, batch, rng, args.num_iters, "batches", not args.no_progress)
    print(format_latency(results), flush=True)
    if args.output_json:
        write_record(args.output_json, make_latency_record(results))
    return 0


def _repeat(
    core: EngineCore, batch: Batch, rng: random.Random, times: int, label: str, is_shown: bool
) -> list[Generated]:
    results: list[Generated] = []
    if not times:
        return results
    with Progress(label, times, is_shown=is_shown) as progress:
        for _ in range(times):
            results.append(generate(core, batch.make(rng, core.info.vocab_size)))
            progress.step()
    return results


def format_latency(results: list[Generated]) -> str:
    """vLLM's lines, and two of our own."""
    latency = describe([result.duration_s for result in results], PERCENTS)
    output = sum(result.num_output_tokens for result in results) / sum(result.duration_s for result in results)
    first = describe([result.first_tokens_s for result in results], (50.0,))
    return "\n".join(
        [
            f"Avg latency: {latency.mean:.6f} seconds",
            *(
                f"{percent_label(percent)}% percentile latency: {value:.6f} seconds"
                for percent, value in latency.percentiles.items()
            ),
            f"Median time until every request had its first token: {first.median:.6f} seconds",
            f"Output token throughput: {output:.2f} tok/s",
        ]
    )


def make_latency_record(results: list[Generated]) -> dict[str, object]:
    """Under vLLM's keys."""
    latency = describe([result.duration_s for result in results], PERCENTS)
    return {
        "avg_latency": latency.mean,
        "latencies": [result.duration_s for result in results],
        "percentiles": {percent_label(percent): value for percent, value in latency.percentiles.items()},
        "first_tokens_s": [result.first_tokens_s for result in results],
    }
