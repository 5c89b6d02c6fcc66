"""The engine and its ranks as processes: they live together and die together, and what died is named."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.errors import EngineLostError
from engine.messages import RequestOutput
from tests.model.driver import Engine, make_prompts, make_request
from tests.tiny_models import VOCAB_SIZE, TinyModel
from tests.unit.running_engine import collect, connected_client, socket_folder, spawned, tokens_of

PROMPTS = make_prompts(60, VOCAB_SIZE, seed=4, longest=40)
ENDS_WITHIN_S = 120
NUM_QUEUED = 60  # requests of 200 tokens, one after the other: seconds of steps on any machine

Start = Callable[[], contextlib.AbstractContextManager[subprocess.Popen[str]]]


@pytest.fixture
def path() -> Iterator[Path]:
    with socket_folder() as folder:
        yield folder / "engine.sock"


@pytest.fixture
def start(path: Path, tiny: Callable[[str], TinyModel]) -> Start:
    """An engine of two ranks that is ready."""

    @contextlib.contextmanager
    def start() -> Iterator[subprocess.Popen[str]]:
        with spawned(str(path), str(tiny("qwen3").baked), "2", module="tests.model.served") as engine:
            assert engine.stderr is not None
            said = []
            while "engine ready" not in (line := engine.stderr.readline()):
                said.append(line)
                assert line, "".join(said)
            yield engine

    return start


def find_rank(engine: subprocess.Popen[str]) -> psutil.Process:
    """The process of rank 1."""
    (rank,) = (child for child in psutil.Process(engine.pid).children() if "--rank" in child.cmdline())
    assert rank.cmdline()[3:5] == ["--rank", "1"]
    return rank


def wait_exit(engine: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status, and what was said until nobody could say more: until all processes are gone."""
    _, said = engine.communicate(timeout=ENDS_WITHIN_S)
    return engine.returncode, said


def wait_gone(process: psutil.Process) -> None:
    """Until it has ended, even if nobody asks how."""
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s, process
            time.sleep(0.05)


def assert_names(said: str, rank: psutil.Process) -> None:
    assert re.search(
        rf"engine failed error=rank 1 of tensor parallelism \(pid {rank.pid}\) was killed by SIGKILL", said
    ), said
    assert "Traceback" not in said


async def test_tokens_through_the_socket_and_an_orderly_end(
    path: Path, start: Start, tiny: Callable[[str], TinyModel]
) -> None:
    requests = [make_request(str(i), prompt, temperature=1.0 * (i % 2), seed=i) for i, prompt in enumerate(PROMPTS[:4])]
    expected = Engine(tiny("qwen3").baked, "cpu").start().generate(requests)
    with start() as engine:
        async with connected_client(path) as client:
            outputs = await asyncio.gather(*(collect(client, request) for request in requests))
        rank = find_rank(engine)
        for process in (rank, engine):  # as a terminal does it
            process.send_signal(signal.SIGINT)
        status, said = wait_exit(engine)
    assert [tokens_of(found) for found in outputs] == [expected[request.request_id].token_ids for request in requests]
    assert status == 0, said
    assert "Traceback" not in said
    wait_gone(rank)


async def test_a_rank_killed_in_a_step_ends_the_engine(path: Path, start: Start) -> None:
    with start() as engine:
        rank = find_rank(engine)
        async with connected_client(path) as client:
            has_begun = asyncio.Event()

            async def read(number: int) -> list[RequestOutput]:
                request = make_request(str(number), PROMPTS[number], max_tokens=200)
                outputs = []
                async for output in client.submit(request):
                    has_begun.set()
                    outputs.append(output)
                return outputs

            tasks = [asyncio.ensure_future(read(number)) for number in range(NUM_QUEUED)]
            await has_begun.wait()
            rank.kill()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        status, said = wait_exit(engine)
    assert any(isinstance(result, EngineLostError) for result in results)
    assert status == 1
    assert_names(said, rank)


def test_a_rank_killed_between_steps_ends_the_engine(start: Start) -> None:
    with start() as engine:
        rank = find_rank(engine)
        rank.kill()
        status, said = wait_exit(engine)
    assert status == 1
    assert_names(said, rank)


def test_a_killed_engine_takes_its_ranks_along(start: Start) -> None:
    with start() as engine:
        rank = find_rank(engine)
        engine.send_signal(signal.SIGKILL)
        wait_exit(engine)
    wait_gone(rank)
