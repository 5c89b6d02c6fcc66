"""The engine as a process of its own: loading, signals, exit codes, kill -9 of either end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.errors import EngineLostError, EngineUnavailableError
from engine.messages import RequestOutput
from tests.unit.engine_process import POISON_TOKEN
from tests.unit.running_engine import (
    FOREVER,
    PATIENCE_S,
    collect,
    connected_client,
    counted,
    make_request,
    socket_folder,
    spawned,
    spawned_engine,
    tokens_of,
    wait_for_info,
    wait_idle,
    wait_ready,
)

STEP = ("--step-s", "0.002")


@pytest.fixture
def path() -> Iterator[Path]:
    with socket_folder() as folder:
        yield folder / "engine.sock"


def wait_exit(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and what was logged."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


def is_there(path: Path) -> bool:
    return path.exists()


def be_busy() -> None:
    """Keep the event loop from reading, as a worker does that renders a long template."""
    time.sleep(0.3)


async def begin(client: EngineClient) -> asyncio.Task[list[RequestOutput]]:
    """Submit something endless and wait until it runs."""
    task = asyncio.ensure_future(collect(client, make_request(max_tokens=FOREVER)))
    await wait_for_info(client, lambda info: info.num_running == 1)
    return task


# Loading


async def test_all_hear_at_once_that_an_engine_is_ready(path: Path) -> None:
    """Not only who asks: when it is killed in the moment after, everybody knows that it will be back."""
    gate = path.with_name("gate")
    os.mkfifo(gate)
    with spawned_engine(path, "--gate", str(gate)) as process:
        async with connected_client(path) as asker, connected_client(path) as quiet:
            await wait_for_info(quiet, lambda info: info.phase == "loading weights")
            assert not quiet.was_ready
            gate.write_bytes(b"go")
            while not (await asker.info(PATIENCE_S)).is_ready:
                pass
            process.kill()
            await asyncio.to_thread(process.wait)
            with pytest.raises((EngineLostError, EngineUnavailableError)):
                await collect(quiet, make_request())
            assert quiet.was_ready


async def test_info_is_answered_while_loading(path: Path) -> None:
    gate = path.with_name("gate")
    os.mkfifo(gate)
    with spawned_engine(path, "--gate", str(gate)) as process:
        async with connected_client(path) as client:
            info = await wait_for_info(client, lambda info: info.phase == "loading weights")
            assert (info.percent, info.is_ready, info.pid, info.vocab_size) == (40.0, False, process.pid, 0)
            assert await client.metrics() == ""
            with pytest.raises(EngineUnavailableError, match="not ready: loading weights, 40 %"):
                await collect(client, make_request())
            gate.write_bytes(b"go")
            info = await wait_ready(client)
            assert list(info.phase_seconds) == ["starting", "loading weights"]
            assert tokens_of(await collect(client, make_request())) == counted(3, 5)


def test_the_socket_is_there_before_the_heavy_imports() -> None:
    heavy = {"torch", "numpy", "engine.core", "engine.runner"}
    code = f"import engine.server, sys; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        ("config", 2, "engine cannot start error=no such model"),
        ("engine", 1, "engine cannot start error=no memory"),
        ("bug", 1, "KeyError: 'bug'"),
    ],
)
def test_a_failed_start_says_why(path: Path, failure: str, code: int, message: str) -> None:
    with spawned_engine(path, "--fail", failure) as process:
        returned, errors = wait_exit(process)
    assert returned == code
    assert message in errors
    assert ("Traceback" in errors) == (failure == "bug")
    assert not is_there(path)


def test_a_bad_socket_path_is_a_configuration_error(path: Path) -> None:
    with spawned_engine(path / "missing" / "engine.sock") as process:
        returned, errors = wait_exit(process)
    assert returned == 2
    assert "engine cannot start error=socket_path: cannot listen on" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_breaks_off_loading(path: Path, number: int) -> None:
    gate = path.with_name("gate")
    os.mkfifo(gate)
    with spawned_engine(path, "--gate", str(gate)) as process:
        async with connected_client(path) as client:
            await wait_for_info(client, lambda info: info.phase == "loading weights")
            process.send_signal(number)
            returned, errors = wait_exit(process)
    assert returned == 0
    assert "engine stopped while loading phase='loading weights'" in errors
    assert not is_there(path)


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_leaves_what_runs_to_the_next_engine(path: Path, number: int) -> None:
    with spawned_engine(path, *STEP) as process:
        async with connected_client(path) as client:
            await wait_ready(client)
            task = await begin(client)
            process.send_signal(number)
            with pytest.raises(EngineLostError):
                await task
            returned, errors = wait_exit(process)
    assert returned == 0
    assert "Traceback" not in errors
    assert not is_there(path)


def test_a_signal_ends_an_idle_engine(path: Path) -> None:
    with spawned_engine(path) as process:
        assert process.stderr is not None
        while "engine ready" not in process.stderr.readline():
            pass
        process.terminate()
        assert wait_exit(process)[0] == 0


async def test_an_idle_engine_uses_no_cpu(path: Path) -> None:
    with spawned_engine(path) as process:
        async with connected_client(path) as client:
            await wait_ready(client)
            before_s = cpu_seconds(process.pid)
            await asyncio.sleep(1.5)
            assert cpu_seconds(process.pid) - before_s < 0.3


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Being killed


async def test_a_killed_engine_is_lost_and_found_again(path: Path) -> None:
    async with connected_client(path) as client:
        with spawned_engine(path, *STEP) as process:
            first = await wait_ready(client)
            tasks = [await begin(client), asyncio.ensure_future(collect(client, make_request(max_tokens=FOREVER)))]
            process.kill()
            for task in tasks:
                with pytest.raises(EngineLostError):
                    await task
        assert is_there(path)
        with pytest.raises(EngineUnavailableError):
            await client.info()
        with spawned_engine(path, *STEP):
            second = await wait_ready(client)
            assert second.engine_id != first.engine_id
            assert second.num_running + second.num_waiting == 0
            assert tokens_of(await collect(client, make_request())) == counted(3, 5)


async def test_what_was_received_before_the_loss_is_delivered(path: Path) -> None:
    with spawned_engine(path, *STEP) as process:
        async with connected_client(path) as client:
            await wait_ready(client)
            received: list[int] = []
            async with aclosing(client.submit(make_request(max_tokens=FOREVER))) as outputs:
                received += (await anext(outputs)).token_ids
                be_busy()
                process.kill()
                process.wait()
                with pytest.raises(EngineLostError):
                    await read_into(received, outputs)
    assert len(received) > 1
    assert received == counted(3, len(received))


async def read_into(received: list[int], outputs: AsyncIterator[RequestOutput]) -> None:
    async for output in outputs:
        received += output.token_ids


@pytest.mark.parametrize("flags", [(), ("--async-scheduling",)], ids=["in turn", "async"])
async def test_a_fault_in_a_step_ends_the_process(path: Path, flags: tuple[str, ...]) -> None:
    with spawned_engine(path, *flags) as process:
        async with connected_client(path) as client:
            await wait_ready(client)
            with pytest.raises(EngineLostError):
                await collect(client, make_request(prompt=[POISON_TOKEN]))
            returned, errors = wait_exit(process)
    assert returned == 1
    assert "ValueError: poisoned" in errors
    assert not is_there(path)


async def test_a_killed_worker_has_its_requests_aborted(path: Path) -> None:
    with spawned_engine(path, *STEP):
        async with connected_client(path) as client:
            await wait_ready(client)
            keeping = await begin(client)
            with spawned(str(path), module="tests.unit.greedy_worker") as worker:
                await wait_for_info(client, lambda info: info.num_running == 11)
                worker.kill()
                killed_s = time.monotonic()
                await wait_for_info(client, lambda info: info.num_running == 1)
                assert time.monotonic() - killed_s < 10
            assert not keeping.done()
            keeping.cancel()
            await asyncio.wait([keeping])
            await wait_idle(client)


async def test_a_frozen_engine_is_lost_where_a_timeout_is_set(path: Path) -> None:
    with spawned_engine(path, *STEP) as process:
        async with connected_client(path, engine_timeout_s=3.0) as client:
            await wait_ready(client)
            task = await begin(client)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(EngineLostError, match="silent"):
                await task
            with pytest.raises(EngineUnavailableError):
                await client.info(0.2)
            process.send_signal(signal.SIGCONT)
            await wait_idle(client)  # the old connection's request was dropped
            assert tokens_of(await collect(client, make_request())) == counted(3, 5)


# Async scheduling


async def test_async_scheduling_answers_the_same(path: Path) -> None:
    with spawned_engine(path, "--async-scheduling") as process:
        async with connected_client(path) as client:
            await wait_ready(client)
            requests = [make_request(f"r{number}", prompt=[number], max_tokens=50) for number in range(20)]
            answers = await asyncio.gather(*(collect(client, request) for request in requests))
            for number, outputs in enumerate(answers):
                assert tokens_of(outputs) == counted(number, 50)
                assert outputs[-1].finish_reason == "length"
            left = await begin(client)
            process.terminate()
            with pytest.raises(EngineLostError):
                await left
            assert wait_exit(process)[0] == 0


async def test_async_scheduling_aborts_what_is_under_way(path: Path) -> None:
    with spawned_engine(path, "--async-scheduling", *STEP):
        async with connected_client(path) as client:
            await wait_ready(client)
            task = await begin(client)
            task.cancel()
            await asyncio.wait([task])
            info = await wait_idle(client)
            assert info.kv_cache_usage == 0
            assert tokens_of(await collect(client, make_request())) == counted(3, 5)
