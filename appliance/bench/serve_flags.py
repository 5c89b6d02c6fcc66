"""The flags of `bench serve`, under vLLM's names, and what several of them mean together."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from appliance.bench.arrival import Arrival, RampUp
from appliance.bench.dataset_flags import add_dataset_flags
from appliance.bench.flag_types import json_object, limit, number, pair, percents, whole, words_of
from appliance.bench.http_client import HttpServer
from appliance.bench.request_body import BACKENDS
from appliance.bench.summary import GOODPUT_METRICS, METRICS
from appliance.errors import SettingsError
from appliance.settings import client_api_key

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """All groups."""
    _add_target_flags(parser.add_argument_group("target"))
    add_dataset_flags(parser, num_prompts=1000)
    _add_arrival_flags(parser.add_argument_group("arrival"))
    _add_sampling_flags(parser.add_argument_group("sampling"))
    _add_report_flags(parser.add_argument_group("report"))


def _add_target_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--backend", choices=sorted(BACKENDS), default="openai", help="protocol: completions or chat (default openai)")
    add("--base-url", metavar="URL", help="the server, instead of --host and --port")
    add("--host", default="127.0.0.1", help="(default 127.0.0.1)")
    add("--port", type=whole(1), default=8000, metavar="N", help="(default 8000)")
    add("--endpoint", metavar="PATH", help="path of the requests (default: the backend's)")
    add("--header", action="append", type=pair, default=[], metavar="NAME=VALUE", help="one more header (repeatable)")
    add("--api-key", metavar="KEY", help="sent as a bearer token (default: OPENAI_API_KEY)")
    add("--insecure", action="store_true", help="accept any TLS certificate")
    add("--model", metavar="NAME", help="(default: the first that the server lists)")
    add("--served-model-name", metavar="NAME", help="the model's name in requests, where --model is its folder")
    add_tokenizer_flags(group)
    add("--extra-body", type=json_object, default={}, metavar="JSON", help="merged into bodies; null drops a field")
    add("--request-timeout", type=number(0), default=21600.0, metavar="S", help="seconds for a request (default 6 h)")


def add_tokenizer_flags(group: argparse._ArgumentGroup) -> None:
    """Where prompt lengths come from."""
    about = "tokenizer.json or a folder with one (default: the served model's own, where it is on this machine)"
    group.add_argument("--tokenizer", type=Path, metavar="PATH", help=about)
    group.add_argument("--skip-tokenizer-init", action="store_true", help="estimate the lengths of prompts")


def _add_arrival_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--request-rate", type=number(0), default=math.inf, metavar="X", help="requests/s (default inf: all at once)")
    add("--burstiness", type=number(0), default=1.0, metavar="X", help="1 Poisson, less clumped, more even (default 1)")
    add("--max-concurrency", type=whole(1), metavar="N", help="most requests under way at once")
    add("--ramp-up-strategy", choices=("linear", "exponential"), help="a rate that climbs, instead of --request-rate")
    add("--ramp-up-start-rps", type=number(0, may_equal=True), metavar="X", help="requests/s at the start")
    add("--ramp-up-end-rps", type=number(0), metavar="X", help="requests/s at the end")
    add("--num-warmups", type=whole(0), default=0, metavar="N", help="unmeasured requests before (default 0)")
    wait = number(0, may_equal=True)
    add(
        "--ready-check-timeout-sec", type=wait, default=0.0, metavar="S", help="wait so long for the server (default 0)"
    )
    add("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default 0)")


def _add_sampling_flags(group: argparse._ArgumentGroup) -> None:
    for name in _SAMPLING:
        kind = int if name == "top_k" else float
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar="X", help="(default: the server's)")
    group.add_argument("--ignore-eos", action="store_true", help="generate the full output length")


def _add_report_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    metrics = ["ttft", "tpot", "itl"]
    about = f"of {', '.join(METRICS)} (default {','.join(metrics)})"
    add("--percentile-metrics", type=words_of(METRICS), default=metrics, metavar="LIST", help=about)
    add("--metric-percentiles", type=percents, default=[99.0], metavar="LIST", help="such as 50,95,99 (default 99)")
    limits = f"what a good request keeps: {', '.join(GOODPUT_METRICS)}"
    add("--goodput", nargs="+", type=limit(GOODPUT_METRICS), metavar="METRIC:MS", help=limits)
    add("--save-result", action="store_true", help="write a JSON file")
    add("--save-detailed", action="store_true", help="… with each request in it")
    add("--append-result", action="store_true", help="… as one more line of the file")
    add("--result-dir", type=Path, metavar="DIR", help="where files go (default: here)")
    add("--result-filename", metavar="NAME", help="(default: LABEL-RATEqps-MODEL-TIME.json)")
    add("--metadata", nargs="+", type=pair, default=[], metavar="KEY=VALUE", help="kept in the file")
    add("--label", metavar="TEXT", help="kept in the file and in its name (default: the backend)")
    drawing = "draw timeline and distributions into an SVG file (default: named as the JSON file)"
    add("--plot", "--plot-timeline", dest="plot", nargs="?", const="", metavar="FILE", help=drawing)
    add("--disable-tqdm", "--no-progress", dest="no_progress", action="store_true", help="no progress bar")


def make_server(args: argparse.Namespace) -> HttpServer:
    """The server that the target flags name. Raises SettingsError."""
    host = f"[{args.host}]" if ":" in args.host else args.host
    headers = dict(args.header)
    key = args.api_key or client_api_key()
    if key and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer {key}"
    return HttpServer.from_url(args.base_url or f"http://{host}:{args.port}", headers, not args.insecure)


def make_arrival(args: argparse.Namespace) -> Arrival:
    """How requests arrive. Raises SettingsError."""
    if args.ramp_up_strategy is None:
        return Arrival(args.request_rate, args.burstiness)
    if args.ramp_up_start_rps is None or args.ramp_up_end_rps is None:
        raise SettingsError(["--ramp-up-strategy: --ramp-up-start-rps and --ramp-up-end-rps are needed, too"])
    if not math.isinf(args.request_rate):
        raise SettingsError(["--ramp-up-strategy: the rate climbs, so --request-rate cannot be given"])
    ramp_up = RampUp(args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
    return Arrival(burstiness=args.burstiness, ramp_up=ramp_up)


def read_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling fields that were given."""
    return {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
