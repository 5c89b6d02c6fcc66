"""`breadbox top`: a box's load, live on a terminal, once elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import shutil
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from typing import Any

from appliance.bench.http_response import HttpError
from appliance.doctor.samples import Samples
from appliance.settings import load_settings_and_problems
from appliance.terminal.box_load import BoxLoad, Scrape, compute_load
from appliance.terminal.box_server import BoxServer, add_server_flags, find_server, make_server, read_error
from appliance.terminal.load_view import LoadView
from appliance.terminal.screen import Screen

_WINDOW_S = 60.0  # of the quantiles
_MAX_HISTORY = 500
_NOTHING = Scrape(0.0, Samples())
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen without a cursor, and back


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--once", action="store_true", help="print once and end, as it does without a terminal")
    parser.add_argument("--json", action="store_true", help="print once, for programs")
    parser.add_argument("--interval", type=float, default=1.0, metavar="X", help="seconds between two looks [1]")
    parser.add_argument("--admin-url", metavar="URL", help="with the box's --admin-port, where it has one")
    add_server_flags(parser)


def run_top(args: argparse.Namespace) -> int:
    """Until q or Ctrl-C; once: 0 if the box is ready, else 1."""
    server, screen = find_server(args), Screen()
    watch = LoadWatch(server, _metrics_server(args, server), max(args.interval, 0.1))
    if not (args.once or args.json) and screen.is_terminal:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_show(watch, screen))
        return 0
    load = asyncio.run(watch.look_once())
    text = json.dumps(dataclasses.asdict(load), indent=2) if args.json else "\n".join(LoadView(screen).draw(load))
    screen.line(text)
    return 0 if load.status == "ready" else 1


def _metrics_server(args: argparse.Namespace, server: BoxServer) -> BoxServer:
    if not args.admin_url:
        return server
    settings = load_settings_and_problems({})[0].settings
    return make_server(args.admin_url, args.api_key, settings, is_verified=not args.insecure)


class LoadWatch:
    """Looks at a box again and again."""

    def __init__(self, server: BoxServer, metrics_server: BoxServer, interval_s: float) -> None:
        self.interval_s = interval_s
        self.history: dict[str, deque[float]] = {}
        self._server = server
        self._metrics_server = metrics_server
        self._scrapes: deque[Scrape] = deque()

    async def look_once(self) -> BoxLoad:
        """Rates over one interval, quantiles since the box began. Raises HttpError where it is away."""
        first = await self._scrape()
        await asyncio.sleep(self.interval_s)
        return compute_load(self._server.url, await self._report(), await self._scrape(), first, _NOTHING)

    async def look(self) -> BoxLoad:
        """Rates since the last look, quantiles over the last minute; never raises."""
        try:
            report, scrape = await self._report(), await self._scrape()
        except HttpError as error:
            self._scrapes.clear()
            return BoxLoad(self._server.url, f"away: {error}")
        last = self._scrapes[-1] if self._scrapes else scrape
        first = self._scrapes[0] if self._scrapes else scrape
        load = compute_load(self._server.url, report, scrape, last, first)
        self._keep(scrape, load)
        return load

    def _keep(self, scrape: Scrape, load: BoxLoad) -> None:
        self._scrapes.append(scrape)
        while self._scrapes[0].at_s < scrape.at_s - _WINDOW_S:
            self._scrapes.popleft()
        for model in load.models:
            rates = self.history.setdefault(model.name, deque(maxlen=_MAX_HISTORY))
            rates.append(model.output_tokens_per_s or 0.0)

    async def _report(self) -> dict[str, Any]:
        """The same whether the box is ready (200) or not (503); the proxy alone has none."""
        status, body = await self._server.get("/startupz")
        with contextlib.suppress(ValueError):
            report = json.loads(body)
            if isinstance(report, dict) and "models" in report:
                return report
        if status in {502, 503, 504}:
            return {"status": "starting"}
        raise HttpError(read_error(status, body))

    async def _scrape(self) -> Scrape:
        status, body = await self._metrics_server.get("/metrics")
        if status in {502, 503, 504}:
            return Scrape(time.monotonic(), Samples())
        if status != 200:
            raise HttpError(f"/metrics: {read_error(status, body)}")
        try:
            return Scrape(time.monotonic(), Samples.parse(body.decode(errors="replace")))
        except ValueError as error:
            raise HttpError(f"/metrics cannot be read: {error}") from None


async def _show(watch: LoadWatch, screen: Screen) -> None:
    view = LoadView(screen)
    with _own_screen(), _pressed_keys() as keys:
        while True:
            load = await watch.look()
            size = shutil.get_terminal_size()
            lines = view.draw(load, watch.history, size.columns)[: size.lines - 2]
            screen.draw([*lines, "", screen.style("q ends", "dim")][: size.lines - 1])
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(keys.get(), watch.interval_s) in {"q", "Q", "\x1b", ""}:
                    return


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


@contextlib.contextmanager
def _pressed_keys() -> Iterator[asyncio.Queue[str]]:
    """Keys as they are pressed; none where standard input is no terminal."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield keys
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: keys.put_nowait(sys.stdin.read(1)))
    try:
        yield keys
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
