"""What a streamed token costs an API worker: ``python -m tests.api.stream_cost [--against OTHER_CHECKOUT]``.

A worker as a box has it (gunicorn, uvicorn, uvloop), and an engine without a model that gives every stream a token at
a fixed rate. Counted is the time on processors, which a busy machine changes far less than the time on the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from appliance.settings import Settings, to_json
from appliance.supervisor.run_dir import open_run_dir
from tests.box.proxy import short_dir
from tests.conftest import MODELS

ROOT = Path(__file__).resolve().parents[2]
_ENGINE = Path(__file__).resolve().with_name("red_engine.py")
READY_WITHIN_S = 120.0
_ENDS_WITHIN_S = 30.0
NAME = "model"


@dataclass
class Worker:
    """One checkout's worker and engine; ``cost_s`` has the processor's seconds a token, by number of streams."""

    tree: Path
    socket: Path
    master: psutil.Process
    cost_s: dict[int, list[float]] = field(default_factory=dict)

    async def measure(self, num_streams: int, num_tokens: int) -> None:
        """Streams at once, from when all have begun until all have ended."""
        streams = [Stream(num_tokens) for _ in range(num_streams)]
        running = [asyncio.create_task(stream.run(self.socket)) for stream in streams]
        for stream in streams:
            await stream.begun.wait()
        begun_s, num_before = self._processor_s(), sum(stream.num_chunks for stream in streams)
        await asyncio.gather(*running)
        cost_s = (self._processor_s() - begun_s) / (num_streams * num_tokens - num_before)
        self.cost_s.setdefault(num_streams, []).append(cost_s)

    def _processor_s(self) -> float:
        """Of all threads so far; finer than what the process' own sums are rounded to."""
        (worker,) = self.master.children()
        threads = Path(f"/proc/{worker.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


class Stream:
    """One streamed chat answer, read as bytes."""

    def __init__(self, num_tokens: int) -> None:
        self.num_chunks = 0
        self.begun = asyncio.Event()
        body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0}
        self._body = json.dumps(body | {"max_tokens": num_tokens}).encode()

    async def run(self, socket: Path) -> None:
        """To its end."""
        reader, writer = await asyncio.open_unix_connection(socket)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: box\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(self._body)}\r\n\r\n".encode() + self._body)
        tail = b""
        while b"data: [DONE]" not in tail:
            data = await reader.read(65536)
            assert data, f"the stream was cut: {tail!r}"
            self.num_chunks += data.count(b"data: ")
            tail = (tail + data)[-1000:]
            if self.num_chunks > 1:
                self.begun.set()
        assert b'"finish_reason":"length"' in tail, tail
        writer.close()


@contextlib.contextmanager
def running_worker(tree: Path, model: Path, token_s: float) -> Iterator[Worker]:
    """The programs of a checkout; they end at the end."""
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(short_dir()) / "run"
        settings = Settings(model=(model,), served_model_name=(NAME,), run_dir=run_dir, api_workers=1)
        stack.enter_context(open_run_dir(settings))
        (run_dir / "settings.json").write_text(to_json(settings))
        environment = {
            "BREADBOX_SETTINGS_FILE": str(run_dir / "settings.json"),
            "PROMETHEUS_MULTIPROC_DIR": str(run_dir / "prometheus"),
            "PYTHONPATH": str(tree),
        }
        engine = [str(_ENGINE), str(run_dir / "engine-0.sock"), str(token_s)]
        config = tree / "appliance" / "supervisor" / "gunicorn_conf.py"
        gunicorn = ["-m", "gunicorn", "--config", str(config), "appliance.api.app:make_app()"]
        stack.enter_context(_program(tree, engine, environment))
        master = stack.enter_context(_program(tree, gunicorn, environment))
        worker = Worker(tree, run_dir / "api.sock", psutil.Process(master.pid))
        asyncio.run(_wait_ready(worker))
        yield worker


@contextlib.contextmanager
def _program(tree: Path, words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *words]
    process = subprocess.Popen(command, cwd=tree, env=os.environ | environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_ENDS_WITHIN_S)


async def _wait_ready(worker: Worker) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, AssertionError):
            return await Stream(2).run(worker.socket)
        await asyncio.sleep(0.2)
    raise TimeoutError("the worker gives no answers")


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.api.stream_cost", description=__doc__)
    parser.add_argument("--against", type=Path, action="append", default=[], help="another checkout, measured in turns")
    parser.add_argument("--model", type=Path, default=MODELS / "SmolLM2-135M-Instruct-float32", help="baked model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="how many at once [1 8]")
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second of each stream [100]")
    parser.add_argument("--tokens", type=int, default=500, help="of each stream [500]")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many counts [3]")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        trees = [tree.resolve() for tree in (*args.against, ROOT)]
        workers = [stack.enter_context(running_worker(tree, args.model, 1 / args.rate)) for tree in trees]
        for _ in range(args.rounds):
            for num_streams in args.streams:
                for worker in workers:
                    asyncio.run(worker.measure(num_streams, args.tokens))
    for num_streams in args.streams:
        report(num_streams, workers)
    return 0


def report(num_streams: int, workers: list[Worker]) -> None:
    """A line a worker, with its share of the first one's cost."""
    medians = [statistics.median(worker.cost_s[num_streams]) for worker in workers]
    for worker, median in zip(workers, medians, strict=True):
        counts = " ".join(f"{cost_s * 1e6:.0f}" for cost_s in worker.cost_s[num_streams])
        share = f"{median / medians[0]:.2f}" if len(workers) > 1 else ""
        print(f"{num_streams} streams: {median * 1e6:6.1f} us a token {share:>5}  ({counts})  {worker.tree}")


if __name__ == "__main__":
    sys.exit(main())
