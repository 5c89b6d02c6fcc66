"""Who writes what a generation says: whoever hears it while the reader sleeps, else the reader, and all in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from appliance.api.choice_stream import Batch, ChoiceStream
from appliance.errors import InternalServerError
from appliance.generation import EventListener, Generation
from appliance.text.events import Content


class Script:
    """As much of a `Generation` as a stream uses: says what it is told to, ends at None, raises errors."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.listener: EventListener | None = None

    async def __aenter__(self) -> Script:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[tuple[int, list[Content]]]:
        while (item := await self.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield 0, [Content(item)]

    def hand_to(self, listener: EventListener) -> None:
        self.listener = listener

    def say(self, text: str) -> None:
        """To the listener, if it is ready."""
        if self.listener is None or not self.listener.is_ready():
            self.items.put_nowait(text)
            return
        try:
            self.listener.take(0, [Content(text)])
        except InternalServerError as error:
            self.listener.fail(error)


class Writer:
    """Notes what is written; may not be used while it is closed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.is_open = True

    def write(self, batch: Batch) -> None:
        self.texts += texts_of(batch)

    def is_ready(self) -> bool:
        return self.is_open


def texts_of(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [event.text for _, event in batch if isinstance(event, Content)]


def make_stream(*scripts: Script) -> ChoiceStream:
    return ChoiceStream([cast(Generation, script) for script in scripts], 1)


async def settle(times: int = 10) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def begin_reading(stream: ChoiceStream, writer: Writer) -> asyncio.Task[Batch | None]:
    """A reader that sleeps, beside whom events may be written."""
    stream.write_with(writer.write, writer.is_ready)
    reader = asyncio.create_task(stream.get())
    await settle()
    return reader


async def test_what_comes_while_the_reader_sleeps_is_written_at_once() -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        stream.write_with(writer.write, writer.is_ready)
        script.say("before")
        await settle()
        assert texts_of(await stream.get()) == ["before"]
        reader = asyncio.create_task(stream.get())
        await settle()
        for text in ("a", "b"):
            script.say(text)
        assert writer.texts == ["a", "b"]
        await settle()
        assert not reader.done()
        script.items.put_nowait(None)
        assert await reader is None


async def test_what_cannot_be_written_is_read_and_what_follows_waits_for_that() -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        reader = await begin_reading(stream, writer)
        writer.is_open = False
        script.say("a")
        writer.is_open = True
        await settle()
        script.say("b")
        assert texts_of(await reader) == ["a"]
        assert texts_of(await stream.get()) == ["b"]
        assert not writer.texts


async def test_a_reader_that_is_about_to_write_comes_first() -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        stream.write_with(writer.write, writer.is_ready)
        reader = asyncio.create_task(stream.get(0.001))
        await settle(2)
        script.say("a")
        await asyncio.sleep(0.02)
        assert await reader == []
        script.say("b")
        await settle()
        assert writer.texts == ["a"]
        assert texts_of(await stream.get()) == ["b"]


async def test_an_error_comes_after_what_was_written_and_nothing_after_it() -> None:
    script, writer = Script(), Writer()
    async with make_stream(script) as stream:
        reader = await begin_reading(stream, writer)
        script.say("a")
        stream.fail(InternalServerError("broken"))
        script.say("b")
        with pytest.raises(InternalServerError, match="broken"):
            await reader
        assert writer.texts == ["a"]


async def test_a_writers_error_is_the_readers() -> None:
    def write(batch: Batch) -> None:
        raise InternalServerError("cannot print")

    script = Script()
    async with make_stream(script) as stream:
        stream.write_with(write, lambda: True)
        reader = asyncio.create_task(stream.get())
        await settle()
        script.say("a")
        with pytest.raises(InternalServerError, match="cannot print"):
            await reader


async def test_what_several_say_is_put_together_by_the_reader() -> None:
    scripts, writer = [Script(), Script()], Writer()
    async with make_stream(*scripts) as stream:
        reader = await begin_reading(stream, writer)
        for script in scripts:
            script.say("a")
        assert await reader == [(0, Content("a")), (1, Content("a"))]
        assert not writer.texts
