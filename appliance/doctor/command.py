"""`breadbox doctor`: flags, and the exit status by severity (0 well, 1 warning, 2 critical)."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.doctor.evidence import Limits
from appliance.doctor.gather import Options, gather
from appliance.doctor.report import as_json, as_text, examine, worst
from appliance.settings import Settings, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    limits = Limits()
    parser.add_argument("--url", help="of the box; default: http://127.0.0.1 with the port of BREADBOX_PORT or 8000")
    parser.add_argument("--api-key", metavar="KEY", help="one of the box's keys; default: that of BREADBOX_API_KEY")
    parser.add_argument("--admin-url", metavar="URL", help="with the box's --admin-port, where it has one")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="X", help="how long to watch [default: 5]")
    parser.add_argument("--no-probe", action="store_true", help="do not ask the box for a small stream")
    parser.add_argument("--log", type=Path, metavar="FILE", help="the box's log, to be searched for reasons")
    parser.add_argument(
        "--proxy-config", type=Path, action="append", default=[], metavar="FILE", help="of an nginx in front of the box"
    )
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the box's, where it has its own --run-dir")
    parser.add_argument(
        "--max-ttft", type=float, default=limits.ttft_s, metavar="X", help="first token within X s [%(default)s]"
    )
    parser.add_argument(
        "--max-itl", type=float, default=limits.itl_s, metavar="X", help="X s between tokens [%(default)s]"
    )
    parser.add_argument("--expect-tokens-per-s", type=float, metavar="X", help="output tokens/s expected under load")


def run_doctor(args: argparse.Namespace) -> int:
    """Examine and print; returns the exit status."""
    settings = load_settings({}).settings
    evidence = gather(_make_options(args, settings))
    findings = examine(evidence)
    print(as_json(evidence, findings) if args.json else as_text(evidence, findings))
    return int(worst(findings))


def _make_options(args: argparse.Namespace, settings: Settings) -> Options:
    return Options(
        url=args.url or f"http://127.0.0.1:{settings.port}",
        api_key=args.api_key or next(iter(settings.api_key), None),
        admin_url=args.admin_url,
        run_dir=args.run_dir,
        seconds=max(args.seconds, 0.1),
        with_probe=not args.no_probe,
        log=args.log,
        proxy_configs=tuple(args.proxy_config),
        limits=Limits(args.max_ttft, args.max_itl, args.expect_tokens_per_s),
    )
