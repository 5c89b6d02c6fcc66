"""`breadbox bench …`: the table of the measurements, their help, and the way from words to a run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from appliance.errors import SettingsError


@dataclass(frozen=True)
class Measurement:
    """One `breadbox bench` command; ``flags`` and ``run`` are "module:function", imported only when it is called."""

    summary: str
    flags: str
    run: str
    usage: str
    examples: str


def run_bench(words: Sequence[str]) -> int:
    """Run one measurement; returns the exit status. Raises ApplianceError."""
    if not words or words[0] in {"-h", "--help"}:
        print(overview())
        return 0 if words else 2
    measurement = MEASUREMENTS.get(words[0])
    if measurement is None:
        raise SettingsError([f"there is no bench command {words[0]!r}; the commands are {', '.join(MEASUREMENTS)}"])
    parser = argparse.ArgumentParser(
        prog=f"breadbox bench {words[0]}",
        usage=measurement.usage,
        description=measurement.summary,
        epilog=measurement.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = _usage_error  # type: ignore[method-assign,assignment]
    _load(measurement.flags)(parser)
    # Boxes have it among their own.
    with contextlib.suppress(argparse.ArgumentError):
        parser.add_argument("--log-level", choices=("info", "debug"), default="info", help="debug shows tracebacks")
    args = parser.parse_intermixed_args(list(words[1:]))
    status = _load(measurement.run)(args)
    assert isinstance(status, int)
    return status


def _load(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    loaded: Callable[..., object] = getattr(import_module(f"appliance.bench.{module}"), function)
    return loaded


def _usage_error(message: str) -> None:
    raise SettingsError([message])


def overview() -> str:
    """What `breadbox bench --help` prints."""
    lines = [f"  {name:<11} {measurement.summary.splitlines()[0]}" for name, measurement in MEASUREMENTS.items()]
    return "\n".join(
        [
            "usage: breadbox bench COMMAND …",
            "",
            "Measures a box, or any server that speaks the OpenAI API. Flags and output as `vllm bench` has them.",
            "",
            "commands:",
            *lines,
            "",
            "examples:",
            "  breadbox bench serve --num-prompts 99 --input-len 128 --output-len 128 --max-concurrency 8 --ignore-eos",
            "  breadbox bench compare http://127.0.0.1:8000 peer=http://127.0.0.1:8080 --markdown",
            "",
            "Words: TTFT = time to the first token; ITL = gap between two chunks of a stream; TPOT = time per output",
            "token after the first; E2E = the whole request. `breadbox bench COMMAND --help` has the flags.",
        ]
    )


MEASUREMENTS: dict[str, Measurement] = {
    "serve": Measurement(
        "Send requests to a running server and report throughput, TTFT, TPOT and ITL.",
        "serve_flags:add_serve_flags",
        "serve:run_serve",
        "breadbox bench serve [--base-url URL] [flags]",
        """examples:
  breadbox bench serve --num-prompts 64 --input-len 128 --output-len 128 --max-concurrency 32 --ignore-eos
  breadbox bench serve --backend openai-chat --dataset-name sharegpt --num-prompts 200 --request-rate 2 \\
      --percentile-metrics ttft,itl,e2el --metric-percentiles 50,95,99 --goodput ttft:500 tpot:50
  breadbox bench serve --base-url https://box.example --api-key KEY --dataset-name custom --dataset-path my.jsonl
  breadbox bench serve --request-rate 4 --burstiness 0.5 --save-result --save-detailed --plot
  breadbox bench serve --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 8 --num-prompts 300""",
    ),
    "latency": Measurement(
        "Time one batch of fixed size, in process: no socket, no HTTP.",
        "latency:add_latency_flags",
        "latency:run_latency",
        "breadbox bench latency [MODEL] [flags]",
        """examples:
  breadbox bench latency ./qwen3 --batch-size 1 --input-len 128 --output-len 128 --num-iters 10
  breadbox bench latency --batch-size 32 --output-len 1              prefill only

The prefix cache is off unless --enable-prefix-caching is given.""",
    ),
    "throughput": Measurement(
        "Work through many requests that are there at once, in process: no socket, no HTTP.",
        "throughput:add_throughput_flags",
        "throughput:run_throughput",
        "breadbox bench throughput [MODEL] [flags]",
        """examples:
  breadbox bench throughput ./qwen3 --num-prompts 200 --input-len 128 --output-len 128
  breadbox bench throughput --dataset-name sharegpt --num-prompts 500 --output-json throughput.json""",
    ),
    "accuracy": Measurement(
        "Compare other precisions of a model with a reference, on real text: top-1, KL, logit errors, perplexity.",
        "accuracy:add_accuracy_flags",
        "accuracy:run_accuracy",
        "breadbox bench accuracy REFERENCE MODEL [MODEL …] [flags]",
        """examples:
  breadbox bake default --out float32 --quantization none --dtype float32
  breadbox bake default --out int8 --quantization int8
  breadbox bench accuracy float32 int8 --num-texts 40

The flags of the engine hold for all models.""",
    ),
    "profile": Measurement(
        "Show where a step's time goes on a CPU, op by op, and how long a stream waits for a long prompt, in process.",
        "profile:add_profile_flags",
        "profile:run_profile",
        "breadbox bench profile [MODEL] [flags]",
        """examples:
  breadbox bench profile ./qwen3
  breadbox bench profile --batch-sizes 1 8 64 --temperature 0.7 --markdown
  breadbox bench profile --max-num-batched-tokens 256      how long may a step be?""",
    ),
    "drafts": Measurement(
        "Measure what --speculative-config brings, on answers that copy and on free text, in process.",
        "drafts:add_drafts_flags",
        "drafts:run_drafts",
        "breadbox bench drafts [MODEL] [flags]",
        """examples:
  breadbox bench drafts ./qwen3 --batch-sizes 1 4 16
  breadbox bench drafts --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --repeat 5

Without --speculative-config: drafts of up to 8 tokens. Ends with an error should a token differ.""",
    ),
    "startup": Measurement(
        "Start a box again and again and time it from its process's start to the first token.",
        "startup:add_startup_flags",
        "startup:run_startup",
        "breadbox bench startup [MODEL …] [flags]",
        """examples:
  breadbox bench startup ./qwen3
  breadbox bench startup --num-iters-cold 3 --num-iters-warm 5 --max-model-len 4k --output-json startup.json

Takes the flags of `breadbox serve`, too. Before a cold start the model's files and the installed packages are dropped
from the page cache, except for what other running programs have mapped.""",
    ),
    "compare": Measurement(
        "Run the same loads on a box and on other servers, interleaved, and print how many times better it is.",
        "comparison.command:add_compare_flags",
        "comparison.command:run_compare",
        "breadbox bench compare [NAME=]URL [NAME=]URL … [flags]",
        """examples:
  breadbox bench compare http://127.0.0.1:8000 llama.cpp=http://127.0.0.1:8080 --output-json compare.json
  breadbox bench compare http://127.0.0.1:8000 q4=http://127.0.0.1:8080 q8=http://127.0.0.1:8081 --markdown
  breadbox bench compare http://127.0.0.1:8000 peer=http://127.0.0.1:8080 --only-rates --rates 1,2,4 --repeat 5

loads (chats of real English text; each answer exactly as long as asked for):
  L1  prompt 128, output 128, one at a time, 4 requests      L2  … 8 at a time, 32 requests
  L3  … 32 at a time, 64 requests                            L4  prompt 2048, output 16, one at a time, 3 requests
  L5  system message of 1024 tokens, shared or not, and 32 tokens more, output 32

A run during which other processes used more than --spoilt-cores is spoilt: left out where there are clean ones, and
marked where there are none.""",
    ),
}
