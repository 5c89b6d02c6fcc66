"""`breadbox bench serve`: sends one load to a server and says what a client sees of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.bench import speculation
from appliance.bench.dataset_flags import read_dataset_options
from appliance.bench.datasets import Sample, make_samples
from appliance.bench.event_loop import run_event_loop
from appliance.bench.http_client import HttpServer
from appliance.bench.load import LoadResult, PreparedRequest, run_load
from appliance.bench.plot import draw
from appliance.bench.progress import Progress
from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.bench.report import ReportOptions, format_report
from appliance.bench.request_body import BACKENDS, BodyOptions, make_body
from appliance.bench.result import RequestResult, count_output_tokens
from appliance.bench.result_file import RunFacts, choose_path, make_details, make_record, write_record
from appliance.bench.serve_flags import make_arrival, make_server, read_sampling
from appliance.bench.speculation import SpeculationStats
from appliance.bench.summary import Summary, summarize
from appliance.bench.target import find_tokenizer_file, first_model, load_tokenizer, wait_until_ready


@dataclass(frozen=True)
class Plan:
    """A load that is ready to go, and the unmeasured requests before it."""

    server: HttpServer
    requests: list[PreparedRequest]
    warmups: list[PreparedRequest]
    model: str
    tokenizer: PromptTokenizer
    tokenizer_file: Path | None


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    load: LoadResult
    summary: Summary
    speculation: SpeculationStats | None


def run_serve(args: argparse.Namespace) -> int:
    """Measure, print, save; exit status 1 if no request was answered. Raises ApplianceError."""
    plan, outcome = run_event_loop(_measure(args))
    options = ReportOptions(args.percentile_metrics, args.max_concurrency, args.request_rate)
    print(format_report(outcome.summary, options, outcome.speculation), flush=True)
    _save(args, plan, outcome)
    return 0 if outcome.summary.num_completed else 1


async def _measure(args: argparse.Namespace) -> tuple[Plan, Outcome]:
    plan = await _make_plan(args)
    await run_load(plan.server, plan.warmups, args.max_concurrency, args.request_timeout)
    before = await speculation.scrape(plan.server)
    with Progress("requests", len(plan.requests), is_shown=not args.no_progress) as progress:

        def step(result: RequestResult) -> None:
            progress.step(result.is_success)

        load = await run_load(plan.server, plan.requests, args.max_concurrency, args.request_timeout, step)
    after = await speculation.scrape(plan.server)
    if plan.tokenizer.is_exact:
        count_output_tokens(load.results, plan.tokenizer.count)
    goodput = None if args.goodput is None else dict(args.goodput)
    summary = summarize(load, args.metric_percentiles, goodput)
    return plan, Outcome(load, summary, speculation.compare(before, after))


async def _make_plan(args: argparse.Namespace) -> Plan:
    server, arrival = make_server(args), make_arrival(args)
    backend = BACKENDS[args.backend]
    path = args.endpoint or backend.path
    is_chat = backend.is_chat or path.endswith("/chat/completions")
    if args.ready_check_timeout_sec:
        await wait_until_ready(server, args.ready_check_timeout_sec, path, is_chat, args.model)
    card = {"id": args.model} if args.model else await first_model(server)
    tokenizer_file = None if args.skip_tokenizer_init else args.tokenizer or find_tokenizer_file(server, card)
    tokenizer = load_tokenizer(tokenizer_file)
    # The warm-ups' prompts come last, so that their number does not change the measured ones.
    count = args.num_prompts
    samples = make_samples(read_dataset_options(args), tokenizer, count + args.num_warmups, args.seed)
    measured, unmeasured = samples[:count], samples[count:]
    options = BodyOptions(
        args.served_model_name or str(card["id"]), is_chat, read_sampling(args), args.ignore_eos, args.extra_body
    )
    times = arrival.times(len(measured), args.seed)
    return Plan(
        server,
        _prepare(path, options, measured, times),
        _prepare(path, options, unmeasured, [0.0] * len(unmeasured)),
        options.model,
        tokenizer,
        tokenizer_file,
    )


def _prepare(
    path: str, options: BodyOptions, samples: Sequence[Sample], times: Sequence[float]
) -> list[PreparedRequest]:
    return [
        PreparedRequest(
            path, make_body(options, sample.prompt, sample.num_output_tokens), sample.num_prompt_tokens, at_s
        )
        for sample, at_s in zip(samples, times, strict=True)
    ]


def _save(args: argparse.Namespace, plan: Plan, outcome: Outcome) -> None:
    facts = RunFacts(
        backend=args.backend,
        model=plan.model,
        tokenizer=str(plan.tokenizer_file) if plan.tokenizer_file else None,
        num_prompts=len(plan.requests),
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
        seed=args.seed,
        label=args.label,
        metadata=dict(args.metadata),
    )
    path = choose_path(facts, args.result_dir, args.result_filename)
    if args.save_result or args.save_detailed or args.append_result:
        record = make_record(facts, outcome.summary, args.percentile_metrics, outcome.speculation)
        details = make_details(outcome.load) if args.save_detailed else {}
        write_record(path, record | details, append=args.append_result)
        _say(f"result: {path}")
    if args.plot is not None:
        drawing = Path(args.plot) if args.plot else path.with_suffix(".svg")
        draw(drawing, outcome.load, f"{plan.model} at {plan.server.url}")
        _say(f"plot: {drawing}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
