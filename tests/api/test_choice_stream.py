"""Who writes what a generation says: its own task while the reader sleeps, else the reader, and never both at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from appliance.api.choice_stream import Batch, ChoiceStream
from appliance.errors import InternalServerError
from appliance.generation import Generation
from appliance.text.events import Content


class Script:
    """As much of a `Generation` as a stream uses: says what it is told to, ends at None, raises errors."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[str | Exception | None] = asyncio.Queue()

    async def __aenter__(self) -> Script:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[tuple[int, list[Content]]]:
        while (item := await self.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield 0, [Content(item)]


class Writer:
    """Notes what is written; each write waits for the gate, if it is closed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, batch: Batch) -> None:
        self.begun.set()
        await self.gate.wait()
        self.texts += texts_of(batch)


def texts_of(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [event.text for _, event in batch if isinstance(event, Content)]


def make_stream(*scripts: Script) -> ChoiceStream:
    return ChoiceStream([cast(Generation, script) for script in scripts], 1)


async def settle(times: int = 10) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_what_comes_while_the_reader_sleeps_is_written_at_once() -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        stream.write_with(writer)
        script.items.put_nowait("before")
        await settle()
        assert texts_of(await stream.get()) == ["before"]
        reader = asyncio.create_task(stream.get())
        await settle()
        for text in ("a", "b"):
            script.items.put_nowait(text)
            await settle()
        assert writer.texts == ["a", "b"]
        assert not reader.done()
        script.items.put_nowait(None)
        assert await reader is None


@pytest.mark.parametrize("what", ["timer", "failure"])
async def test_a_reader_is_not_woken_in_the_middle_of_a_write(what: str) -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        stream.write_with(writer)
        reader: asyncio.Task[Any] = asyncio.create_task(stream.get(0.001 if what == "timer" else None))
        await settle(2)
        writer.gate.clear()
        script.items.put_nowait("a")
        await writer.begun.wait()
        if what == "failure":
            stream.fail(InternalServerError("over"))
        await asyncio.sleep(0.02)
        assert not reader.done()
        writer.gate.set()
        if what == "timer":
            assert await reader == []
        else:
            with pytest.raises(InternalServerError, match="over"):
                await reader
        assert writer.texts == ["a"]


async def test_an_error_comes_after_what_was_written() -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        stream.write_with(writer)
        reader = asyncio.create_task(stream.get())
        await settle()
        script.items.put_nowait("a")
        script.items.put_nowait(InternalServerError("broken"))
        with pytest.raises(InternalServerError, match="broken"):
            await reader
        assert writer.texts == ["a"]


async def test_a_writers_error_is_the_readers() -> None:
    async def write(batch: Batch) -> None:
        raise InternalServerError("cannot print")

    script = Script()
    async with make_stream(script) as stream:
        stream.write_with(write)
        reader = asyncio.create_task(stream.get())
        await settle()
        script.items.put_nowait("a")
        with pytest.raises(InternalServerError, match="cannot print"):
            await reader


async def test_what_several_say_is_put_together_by_the_reader() -> None:
    scripts, writer = [Script(), Script()], Writer()
    async with make_stream(*scripts) as stream:
        stream.write_with(writer)
        reader = asyncio.create_task(stream.get())
        await settle()
        for script in scripts:
            script.items.put_nowait("a")
        assert await reader == [(0, Content("a")), (1, Content("a"))]
        assert not writer.texts
