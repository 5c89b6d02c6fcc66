"""`breadbox bench startup`: starts boxes one after the other and says how long each took to its first token.

A cold start finds neither the model's files nor the installed packages in the page cache, as far as that can be had
without root: pages that other running programs have mapped stay. A warm start comes after one that was not measured.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from appliance.bench.flag_types import number, whole
from appliance.bench.http_client import HttpServer
from appliance.bench.result_file import write_record
from appliance.bench.started_box import Start, StartPlan, start_and_stop
from appliance.bench.statistics import describe, spread
from appliance.derived_settings import find_models, names_by_model
from appliance.settings import KNOBS, Settings, add_flags, load_settings

_PERCENTS = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)
_MIB = 1024**2


def add_startup_flags(parser: argparse.ArgumentParser) -> None:
    """Our own, and those of `breadbox serve`."""
    add = parser.add_argument_group("starts").add_argument
    add("--num-iters-cold", type=whole(0), default=1, metavar="N", help="cold starts (default 1)")
    add("--num-iters-warmup", type=whole(0), default=1, metavar="N", help="unmeasured starts before (default 1)")
    add("--num-iters-warm", type=whole(0), default=3, metavar="N", help="warm starts (default 3)")
    add("--start-timeout", type=number(0), default=600.0, metavar="S", help="seconds for a start (default 600)")
    add("--output-json", type=Path, metavar="FILE", help="write the result to a file")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="what to serve, as for `breadbox serve`")
    add_flags(parser)


def run_startup(args: argparse.Namespace) -> int:
    """Measure, print, save. Raises ApplianceError where a box does not start."""
    plan, models = make_plan(args)
    cold = [_start_cold(plan, models, f"cold start {index + 1}") for index in range(args.num_iters_cold)]
    for index in range(args.num_iters_warmup if args.num_iters_warm else 0):
        _start(plan, f"warm-up {index + 1}")
    warm = [_start(plan, f"warm start {index + 1}") for index in range(args.num_iters_warm)]
    print(format_startup(cold, warm), flush=True)
    if args.output_json:
        write_record(args.output_json, make_startup_record(cold, warm))
    return 0


def make_plan(args: argparse.Namespace) -> tuple[StartPlan, list[Path]]:
    """The command that starts a box on loopback, unless the flags say otherwise, and the models' folders."""
    words = {knob.name: getattr(args, knob.name) for knob in KNOBS}
    words["model"] = [*args.models, *(words["model"] or [])] or None
    words["host"] = words["host"] or ["127.0.0.1"]
    words["port"] = words["port"] or [str(_free_port())]
    settings = load_settings(words).settings
    models = find_models(settings)
    command = [sys.executable, "-m", "appliance", "serve", *_flag_words(words)]
    name = names_by_model(settings, models)[0][0]
    return StartPlan(command, _server(settings), name, args.start_timeout), list(models)


def _flag_words(words: dict[str, Any]) -> list[str]:
    flags = []
    for knob in KNOBS:
        for word in words[knob.name] or ():
            is_off = isinstance(knob.default, bool) and word == "false"
            flags.append(("--no-" + knob.flag[2:]) if is_off else knob.flag)
            flags += [] if isinstance(knob.default, bool) else [word]
    return flags


def _server(settings: Settings) -> HttpServer:
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - the box's own default
    server = HttpServer(host, settings.port, settings.root_path)
    return replace(server, headers={"Authorization": f"Bearer {settings.api_key[0]}"}) if settings.api_key else server


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def evict_from_page_cache(folders: Sequence[Path]) -> None:
    """Ask the kernel to forget what it has of these files."""
    for file in _files(folders):
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(folders: Sequence[Path]) -> Iterator[str]:
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(root, name)
                if not os.path.islink(path) and os.path.isfile(path):
                    yield path


def _start_cold(plan: StartPlan, models: Sequence[Path], label: str) -> Start:
    evict_from_page_cache([*models, Path(sys.prefix)])
    return _start(plan, label)


def _start(plan: StartPlan, label: str) -> Start:
    start = start_and_stop(plan)
    print(f"{label}: ready after {start.ready_s:.2f} s, first token after {start.first_token_s:.2f} s", file=sys.stderr)
    return start


def format_startup(cold: Sequence[Start], warm: Sequence[Start]) -> str:
    """A section for each kind of start, with the phases of its median start."""
    lines = [" Startup Benchmark Result ".center(50, "=")]
    for title, starts in (("Cold starts", cold), ("Warm starts", warm)):
        if starts:
            lines += _section(title, starts)
    return "\n".join([*lines, "=" * 50])


def _section(title: str, starts: Sequence[Start]) -> list[str]:
    median = sorted(starts, key=lambda start: start.first_token_s)[len(starts) // 2]
    memory = [start.memory_bytes / _MIB for start in starts if start.memory_bytes]
    return [
        f"{title} ({len(starts)})".center(50, "-"),
        _line("Process start to ready (s):", [start.ready_s for start in starts]),
        _line("Process start to first token (s):", [start.first_token_s for start in starts]),
        *(f"  {phase + ' (s):':<38} {seconds:.2f}" for phase, seconds in median.phases.items()),
        *([_line("Idle memory, all processes (MiB PSS):", memory)] if memory else []),
    ]


def _line(label: str, values: Sequence[float]) -> str:
    facts = spread(values)
    assert facts is not None
    text = f"{label:<40} {facts.median:.2f}"
    return text if facts.low == facts.high else f"{text} ({facts.low:.2f}–{facts.high:.2f})"


def make_startup_record(cold: Sequence[Start], warm: Sequence[Start]) -> dict[str, Any]:
    """Averages and percentiles of the time to the first token, and every start."""
    record: dict[str, Any] = {}
    for kind, starts in (("cold", cold), ("warm", warm)):
        times = [start.first_token_s for start in starts]
        facts = describe(times, _PERCENTS)
        record |= {
            f"avg_{kind}_startup_time": facts.mean,
            f"{kind}_startup_times": times,
            f"{kind}_startup_percentiles": {f"{percent:g}": value for percent, value in facts.percentiles.items()},
            f"{kind}_starts": [asdict(start) for start in starts],
        }
    return record
