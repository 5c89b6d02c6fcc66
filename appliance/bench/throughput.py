"""`breadbox bench throughput`: how fast an engine works through many requests that are there at once, in process."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from appliance.baked_model import BakedModel
from appliance.bench.dataset_flags import add_dataset_flags, read_dataset_options
from appliance.bench.datasets import make_samples
from appliance.bench.flag_types import whole
from appliance.bench.in_process import add_engine_flags, generate, load_core, load_engine_settings, make_requests
from appliance.bench.progress import Progress
from appliance.bench.prompt_tokenizer import ModelTokenizer
from appliance.bench.result_file import write_record
from engine.messages import GenerateRequest


def add_throughput_flags(parser: argparse.ArgumentParser) -> None:
    """vLLM's names and defaults."""
    add_dataset_flags(parser, num_prompts=1000)
    add = parser.add_argument_group("run").add_argument
    add("--n", type=whole(1), default=1, metavar="N", help="answers to each prompt (default 1)")
    add("--output-json", type=Path, metavar="FILE", help="write the result to a file")
    add("--disable-detokenize", action="store_true", help="accepted; token ids are never made text here")
    add("--disable-tqdm", "--no-progress", dest="no_progress", action="store_true", help="no progress bar")
    add_engine_flags(parser)


@dataclass(frozen=True)
class Throughput:
    """A whole run."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    duration_s: float

    def __str__(self) -> str:
        total = self.num_prompt_tokens + self.num_output_tokens
        rates = [number / self.duration_s for number in (self.num_requests, total, self.num_output_tokens)]
        return "\n".join(
            [
                "Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s".format(*rates),
                f"Total num prompt tokens:  {self.num_prompt_tokens}",
                f"Total num output tokens:  {self.num_output_tokens}",
            ]
        )

    def as_json(self) -> dict[str, object]:
        """Under vLLM's keys."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return {
            "elapsed_time": self.duration_s,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "total_num_prompt_tokens": self.num_prompt_tokens,
            "total_num_output_tokens": self.num_output_tokens,
            "requests_per_second": self.num_requests / self.duration_s,
            "tokens_per_second": total / self.duration_s,
            "output_tokens_per_second": self.num_output_tokens / self.duration_s,
        }


def run_throughput(args: argparse.Namespace) -> int:
    """Measure, print, save. Raises ApplianceError, ConfigError."""
    loaded = load_engine_settings(args)
    requests = _make_requests(args, BakedModel(loaded.settings.model[0]), loaded.settings.seed)
    core = load_core(loaded, prefix_caching=True)
    with Progress("requests", len(requests), is_shown=not args.no_progress) as progress:
        generated = generate(core, requests, progress.step)
    num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests) // args.n
    result = Throughput(len(requests) // args.n, num_prompt_tokens, generated.num_output_tokens, generated.duration_s)
    print(result, flush=True)
    if args.output_json:
        write_record(args.output_json, result.as_json())
    return 0


def _make_requests(args: argparse.Namespace, baked: BakedModel, seed: int) -> list[GenerateRequest]:
    tokenizer = ModelTokenizer(baked.tokenizer_path)
    samples = make_samples(read_dataset_options(args), tokenizer, args.num_prompts, seed)
    return [
        request
        for index, sample in enumerate(samples)
        for request in make_requests(
            f"{index}", tokenizer.encode(sample.prompt), sample.num_output_tokens, args.n, seed + index
        )
    ]
