"""A full queue refuses at once, the same for every worker, whole groups or none; what was taken is never dropped."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.client import EngineClient
from engine.messages import GenerateRequest, RequestGroup, RequestOutput
from tests.unit.engine_process import CountingRunner
from tests.unit.running_engine import (
    FOREVER,
    PATIENCE_S,
    collect,
    connected_client,
    make_request,
    running_engine,
    socket_folder,
    spawned,
    wait_for_info,
    wait_idle,
    wait_ready,
)

SEATS, PLACES = 2, 3


@pytest.fixture
def path() -> Iterator[Path]:
    with socket_folder() as folder:
        yield folder / "engine.sock"


@contextmanager
def gated_engine(path: Path, **knobs: Any) -> Iterator[threading.Semaphore]:
    """An engine that takes one step a release of the semaphore, with two seats and three places in the queue."""
    gate = threading.Semaphore(0)
    with running_engine(path, CountingRunner(gate=gate), max_num_seqs=SEATS, max_num_queued_reqs=PLACES, **knobs):
        try:
            yield gate
        finally:
            gate.release(FOREVER)


def ask_all(client: EngineClient, requests: list[GenerateRequest]) -> list[asyncio.Task[list[RequestOutput]]]:
    return [asyncio.create_task(collect(client, request)) for request in requests]


async def wait_refused(tasks: list[asyncio.Task[list[RequestOutput]]], count: int) -> None:
    """Until so many have their answer; no step is needed for that."""
    async with asyncio.timeout(PATIENCE_S):
        for answered in itertools.islice(asyncio.as_completed(tasks), count):
            await answered


def is_refused(outputs: list[RequestOutput]) -> bool:
    return len(outputs) == 1 and outputs[0].queue_limit is not None and outputs[0].finish_reason == "error"


async def test_the_limit_is_exact_over_workers_and_needs_no_step(path: Path) -> None:
    with gated_engine(path) as gate:
        async with connected_client(path) as one, connected_client(path) as two:
            await wait_ready(one)
            await wait_ready(two)
            tasks = ask_all(one, [make_request(f"a{i}") for i in range(6)])
            tasks += ask_all(two, [make_request(f"b{i}") for i in range(6)])
            await wait_refused(tasks, 12 - SEATS - PLACES)
            refused = [task.result() for task in tasks if task.done()]
            assert len(refused) == 12 - SEATS - PLACES
            assert all(map(is_refused, refused))
            assert "max_num_queued_reqs" in (refused[0][0].error or "")
            gate.release(FOREVER)
            answers = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
            assert sum(not is_refused(answer) for answer in answers) == SEATS + PLACES
            await wait_idle(one)
            assert not is_refused(await collect(one, make_request("later")))


async def test_tokens_are_limited_but_one_prompt_may_always_wait(path: Path) -> None:
    with gated_engine(path, max_num_queued_tokens=10) as gate:
        async with connected_client(path) as client:
            await wait_ready(client)
            long = ask_all(client, [make_request("long", prompt=list(range(50)))])
            await wait_for_info(client, lambda info: info.num_running == 1)
            waiting = ask_all(client, [make_request(f"w{i}", prompt=[1] * 6) for i in range(2)])
            await wait_refused(waiting, 1)
            assert "max_num_queued_tokens" in (waiting[1].result()[0].error or "")
            gate.release(FOREVER)
            for task in (*long, waiting[0]):
                assert not is_refused(await asyncio.wait_for(task, PATIENCE_S))


def make_group(group_id: str, size: int, num_tokens: int = 3) -> list[GenerateRequest]:
    group = RequestGroup(group_id=group_id, num_requests=size, num_tokens=size * num_tokens)
    return [make_request(f"{group_id}-{index}", group=group) for index in range(size)]


async def test_a_group_is_taken_whole_or_not_at_all(path: Path) -> None:
    with gated_engine(path) as gate:
        async with connected_client(path) as client:
            await wait_ready(client)
            first = ask_all(client, make_group("first", 4))
            await wait_for_info(client, lambda info: info.num_running > 0)
            second = ask_all(client, make_group("second", 2))
            await wait_refused(second, 2)
            third = ask_all(client, make_group("third", 1))
            gate.release(FOREVER)
            answers = [await asyncio.wait_for(task, PATIENCE_S) for task in (*first, *third)]
            assert not any(map(is_refused, answers))
            assert all(is_refused(task.result()) for task in second)


async def test_a_group_that_can_never_fit_is_told_so(path: Path) -> None:
    with gated_engine(path):
        async with connected_client(path) as client:
            await wait_ready(client)
            size = SEATS + PLACES + 1
            for task in ask_all(client, make_group("all", size)):
                (output,) = await asyncio.wait_for(task, PATIENCE_S)
                assert (output.error_param, output.queue_limit) == ("n", None)
                assert f"is {size}, but at most {size - 1}" in (output.error or "")


async def test_what_an_earlier_engine_had_taken_is_never_refused(path: Path) -> None:
    with gated_engine(path) as gate:
        async with connected_client(path) as client:
            await wait_ready(client)
            tasks = ask_all(client, [make_request(f"r{i}", was_admitted=True) for i in range(20)])
            (refused,) = ask_all(client, [make_request("new")])
            assert is_refused(await asyncio.wait_for(refused, PATIENCE_S))
            gate.release(FOREVER)
            assert not any(map(is_refused, await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)))


async def test_a_dead_workers_places_are_free_again(path: Path) -> None:
    with running_engine(path, CountingRunner(step_s=0.001), max_num_seqs=4, max_num_queued_reqs=6):
        async with connected_client(path) as client:
            await wait_ready(client)
            with spawned(str(path), module="tests.unit.greedy_worker"):
                await wait_for_info(client, lambda info: info.num_running + info.num_waiting == 10)
                assert is_refused(await collect(client, make_request("early")))
            await wait_idle(client)
            assert not is_refused(await collect(client, make_request("late")))
