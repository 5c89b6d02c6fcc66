"""The fake engine keeps the promises of the real client: one set of tests for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from engine.client import EngineClient
from engine.errors import EngineLostError, EngineUnavailableError
from engine.messages import GenerateRequest, RequestOutput
from tests.fakes import Answer, FakeEngine
from tests.unit.engine_process import CountingRunner
from tests.unit.running_engine import (
    FOREVER,
    collect,
    connected_client,
    counted,
    make_request,
    running_engine,
    socket_folder,
    tokens_of,
    wait_idle,
    wait_ready,
)


def count(request: GenerateRequest) -> Answer:
    return Answer(token_ids=counted(request.prompt_token_ids[-1], FOREVER))


@pytest.fixture(params=["real", "fake"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[EngineClient | FakeEngine]:
    if request.param == "fake":
        yield FakeEngine(count)
        return
    with socket_folder() as folder, running_engine(folder / "e.sock", CountingRunner(gate=_open_gate())):
        async with connected_client(folder / "e.sock") as client:
            await wait_ready(client)
            yield client


def _open_gate() -> threading.Semaphore:
    return threading.Semaphore(FOREVER)


@pytest.mark.parametrize("name", ["start", "close", "submit", "abort", "info", "metrics", "reset_prefix_cache"])
def test_the_interface_is_the_clients(name: str) -> None:
    fake, real = getattr(FakeEngine, name), getattr(EngineClient, name)
    assert inspect.signature(fake) == inspect.signature(real)
    assert inspect.isasyncgenfunction(fake) == inspect.isasyncgenfunction(real)


async def test_a_request_ends_at_max_tokens(engine: EngineClient) -> None:
    outputs = await collect(engine, make_request("mine", max_tokens=7))
    assert tokens_of(outputs) == counted(3, 7)
    assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]
    assert outputs[0].num_cached_tokens == 0
    assert {output.request_id for output in outputs} == {"mine"}


async def test_closing_early_leaves_nothing_running(engine: EngineClient) -> None:
    async with aclosing(engine.submit(make_request(max_tokens=FOREVER))) as outputs:
        await anext(outputs)
    await wait_idle(engine)


async def test_abort_ends_the_iterator(engine: EngineClient) -> None:
    async with aclosing(engine.submit(make_request("dropped", max_tokens=FOREVER))) as outputs:
        await anext(outputs)
        await engine.abort(["dropped"])
        assert [output.finish_reason async for output in outputs][-1] == "abort"
    assert (await engine.info()).is_ready


# What only the fake can do


async def test_an_answer_by_prompt() -> None:
    engine = FakeEngine({(1,): Answer(token_ids=[5, 6], stop_reason=6), (2,): Answer(token_ids=[7], finish_reason="x")})
    first, second = [await collect(engine, make_request(prompt=[i])) for i in (1, 2)]
    assert tokens_of(first) == [5, 6]
    assert (first[-1].finish_reason, first[-1].stop_reason) == ("stop", 6)
    assert second == [RequestOutput(request_id="r", token_ids=[7], num_cached_tokens=0, finish_reason="x")]
    assert [request.prompt_token_ids for request in engine.requests] == [[1], [2]]
    assert engine.aborted == []


async def test_an_engine_that_is_lost_and_goes_on() -> None:
    engine = FakeEngine(
        lambda request: Answer(token_ids=[1, 2, 3], lost_after=None if request.resumed_token_ids else 2)
    )
    received: list[int] = []
    with pytest.raises(EngineLostError):
        await _read_into(received, engine, make_request())
    assert received == [1, 2]
    resumed = GenerateRequest(
        request_id="r", prompt_token_ids=[1], sampling=make_request().sampling, resumed_token_ids=received
    )
    assert tokens_of(await collect(engine, resumed)) == [3]
    assert engine.aborted == []


async def _read_into(received: list[int], engine: FakeEngine, request: GenerateRequest) -> None:
    async for output in engine.submit(request):
        received += output.token_ids


async def test_an_engine_that_fails() -> None:
    engine = FakeEngine(Answer(token_ids=[1, 2], error="broken", error_param="seed", error_after=1))
    outputs = await collect(engine, make_request())
    assert tokens_of(outputs) == [1]
    assert (outputs[-1].finish_reason, outputs[-1].error, outputs[-1].error_param) == ("error", "broken", "seed")


@pytest.mark.parametrize("engine", [FakeEngine(is_available=False), FakeEngine(is_ready=False)])
async def test_an_engine_that_takes_nothing(engine: FakeEngine) -> None:
    with pytest.raises(EngineUnavailableError):
        await collect(engine, make_request())
    assert engine.requests == []


async def test_outputs_wait_for_the_gate() -> None:
    gate = asyncio.Semaphore(0)
    engine = FakeEngine(Answer(token_ids=[1, 2, 3, 4], tokens_an_output=2, gate=gate))
    task = asyncio.ensure_future(collect(engine, make_request()))
    await asyncio.sleep(0)
    assert (await engine.info()).num_running == 1
    gate.release()
    gate.release()
    assert [output.token_ids for output in await task] == [[1, 2], [3, 4]]


async def test_logprobs_are_made_up_where_asked_for() -> None:
    request = make_request(prompt=[8, 9])
    sampling = type(request.sampling)(max_tokens=1, seed=1, logprobs=2, prompt_logprobs=0)
    asked = GenerateRequest(request_id="r", prompt_token_ids=[8, 9], sampling=sampling)
    (output,) = await collect(FakeEngine(Answer(token_ids=[4])), asked)
    assert output.logprobs is not None
    assert output.logprobs[0].top == [(4, -0.5), (5, -1.5)]
    assert output.prompt_logprobs is not None
    assert [entry and entry.token_id for entry in output.prompt_logprobs] == [None, 9]
