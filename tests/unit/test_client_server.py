"""Client and server over a real socket in one process: outputs, aborts, slow readers, garbage, lifetimes."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Self

import msgspec
import pytest

from engine.client import EngineClient
from engine.client.connection import RECONNECT_S
from engine.errors import ConfigError, EngineLostError, EngineUnavailableError
from engine.frames import FrameReader, pack_frame
from engine.messages import (
    AbortRequest,
    EngineInfo,
    InfoRequest,
    Outputs,
    Ping,
    RequestOutput,
    decode_reply,
    decode_request,
    encode,
)
from engine.server import EngineServer
from engine.server.io_thread import InboxItem, IOThread, Received, WorkerLost
from engine.server.queue_gate import QueueGate
from engine.server.status import Status
from tests.unit.engine_process import INFO, VOCAB_SIZE, CountingRunner, make_config
from tests.unit.running_engine import (
    FOREVER,
    PATIENCE_S,
    collect,
    connected_client,
    counted,
    make_request,
    running_engine,
    socket_folder,
    tokens_of,
    wait_for_info,
    wait_idle,
    wait_ready,
)

MANY = FOREVER - 1000  # steps: enough for a message to arrive meanwhile, too few to finish an endless request


@pytest.fixture
def path() -> Iterator[Path]:
    with socket_folder() as folder:
        yield folder / "engine.sock"


@pytest.fixture
def gate() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
async def client(path: Path) -> AsyncIterator[EngineClient]:
    """A client of an engine whose steps take no time."""
    with running_engine(path, CountingRunner()):
        async with connected_client(path) as client:
            await wait_ready(client)
            yield client


@pytest.fixture
async def gated(path: Path, gate: threading.Semaphore) -> AsyncIterator[EngineClient]:
    """A client of an engine that takes one step a release of `gate`."""
    with running_engine(path, CountingRunner(gate=gate)):
        async with connected_client(path) as client:
            await wait_ready(client)
            try:
                yield client
            finally:
                gate.release(FOREVER)


# Outputs


async def test_a_request_comes_back_as_outputs(client: EngineClient) -> None:
    outputs = await collect(client, make_request("mine", prompt=[1, 2, 997]))
    assert tokens_of(outputs) == [998, 999, 0, 1, 2]
    assert {output.request_id for output in outputs} == {"mine"}
    assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]
    assert outputs[0].num_cached_tokens == 0


async def test_each_step_is_delivered_as_it_ends(gated: EngineClient, gate: threading.Semaphore) -> None:
    async with aclosing(gated.submit(make_request(max_tokens=3))) as outputs:
        for token in counted(3, 3):
            gate.release()
            assert (await anext(outputs)).token_ids == [token]


async def test_a_listener_comes_before_a_consumer_that_waits(gated: EngineClient, gate: threading.Semaphore) -> None:
    taken: list[int] = []

    def take(output: RequestOutput) -> bool:
        if output.finish_reason is not None or len(taken) == 2:
            return False
        taken.extend(output.token_ids)
        return True

    async with aclosing(gated.submit(make_request(max_tokens=4), take)) as outputs:
        consumer = asyncio.create_task(anext(outputs))
        for _ in range(3):
            gate.release()
            await asyncio.sleep(0.05)
        read = [await consumer]
        gate.release()
        read += [output async for output in outputs]
    assert taken + tokens_of(read) == counted(3, 4)
    assert len(taken) == 2
    assert read[-1].finish_reason == "length"


async def test_many_requests_at_once_get_their_own_tokens(client: EngineClient) -> None:
    requests = [make_request(f"r{i}", prompt=[i], max_tokens=20 + i % 7) for i in range(200)]
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(collect(client, request) for request in requests))
    assert [tokens_of(answer) for answer in answers] == [counted(i, 20 + i % 7) for i in range(200)]
    await wait_idle(client)


async def test_two_workers_may_use_the_same_request_id(client: EngineClient, path: Path) -> None:
    async with connected_client(path) as other:
        answers = await asyncio.gather(
            *(collect(client, make_request("same", prompt=[i], max_tokens=50)) for i in (10, 20)),
            *(collect(other, make_request("same", prompt=[i], max_tokens=50)) for i in (30, 40)),
        )
    assert [tokens_of(answer) for answer in answers] == [counted(i, 50) for i in (10, 20, 30, 40)]


async def test_a_refused_request_gets_an_error_output(client: EngineClient) -> None:
    (output,) = await collect(client, make_request(prompt=[VOCAB_SIZE]))
    assert output.finish_reason == "error"
    assert output.error_param == "prompt_token_ids"
    assert output.error
    assert not output.unavailable


async def test_an_id_in_use_by_the_same_worker_is_refused(
    gated: EngineClient, gate: threading.Semaphore, path: Path
) -> None:
    with raw_worker(path) as raw:
        for _ in range(2):
            raw.send(encode(make_request("twice")))
        gate.release(1)
        outputs: list[RequestOutput] = []
        while not any(output.error for output in outputs):
            outputs += receive(raw).outputs
            gate.release(1)
    assert [output.error_param for output in outputs if output.error] == ["request_id"]


async def test_a_resumed_request_goes_on(client: EngineClient) -> None:
    request = msgspec.structs.replace(make_request(max_tokens=5), resumed_token_ids=[4, 5])
    assert tokens_of(await collect(client, request)) == [6, 7, 8]


# Info, metrics, cache


async def test_info_tells_facts_and_load(gated: EngineClient) -> None:
    async with aclosing(gated.submit(make_request())) as outputs:
        waiting = asyncio.ensure_future(anext(outputs))
        info = await wait_for_info(gated, lambda info: info.num_running == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert (info.phase, info.percent, info.error) == ("ready", 100.0, None)
    assert (info.vocab_size, info.block_size, info.num_gpu_blocks) == (VOCAB_SIZE, INFO.block_size, INFO.num_blocks)
    assert (info.device, info.dtype, info.max_model_len) == ("fake", "float32", INFO.max_model_len)
    assert info.kv_cache_usage > 0
    assert list(info.phase_seconds) == ["starting"]


async def test_metrics_are_prometheus_text(client: EngineClient) -> None:
    await collect(client, make_request(max_tokens=7))
    assert 'vllm:generation_tokens_total{engine="0",model_name="model"} 7.0' in await client.metrics()


async def test_the_prefix_cache_is_emptied_unless_in_use(gated: EngineClient, gate: threading.Semaphore) -> None:
    prompt = list(range(64))
    gate.release(2)
    await collect(gated, make_request(prompt=prompt, max_tokens=1))
    assert await gated.reset_prefix_cache()
    async with aclosing(gated.submit(make_request(prompt=prompt, max_tokens=FOREVER))) as outputs:
        assert (await anext(outputs)).num_cached_tokens == 0
        gate.release(MANY)
        assert not await gated.reset_prefix_cache()


# Aborts


async def test_closing_the_iterator_aborts(gated: EngineClient, gate: threading.Semaphore) -> None:
    async with aclosing(gated.submit(make_request(max_tokens=FOREVER))) as outputs:
        gate.release()
        await anext(outputs)
    gate.release(MANY)
    assert (await wait_idle(gated)).kv_cache_usage == 0


async def test_cancelling_the_consumer_aborts(gated: EngineClient, gate: threading.Semaphore) -> None:
    task = asyncio.ensure_future(collect(gated, make_request(max_tokens=FOREVER)))
    await wait_for_info(gated, lambda info: info.num_running == 1)
    task.cancel()
    await asyncio.wait([task])
    gate.release(MANY)
    await wait_idle(gated)


async def test_abort_ends_the_iterator(client: EngineClient) -> None:
    keeping = asyncio.ensure_future(collect(client, make_request("kept", max_tokens=50)))
    async with aclosing(client.submit(make_request("dropped", max_tokens=FOREVER))) as outputs:
        await anext(outputs)
        await client.abort(["dropped", "unknown"])
        reasons = [output.finish_reason async for output in outputs]
    assert reasons[-1] == "abort"
    assert tokens_of(await keeping) == counted(3, 50)


async def test_an_aborted_id_can_be_used_again_at_once(client: EngineClient) -> None:
    for i in range(20):
        async with aclosing(client.submit(make_request("again", max_tokens=FOREVER))) as outputs:
            await anext(outputs)
        assert tokens_of(await collect(client, make_request("again", prompt=[i]))) == counted(i, 5)


async def test_a_closed_client_has_its_requests_aborted(
    gated: EngineClient, gate: threading.Semaphore, path: Path
) -> None:
    async with connected_client(path) as other:
        task = asyncio.ensure_future(collect(other, make_request(max_tokens=FOREVER)))
        await wait_for_info(gated, lambda info: info.num_running == 1)
    with pytest.raises(EngineUnavailableError, match="closed"):
        await task
    gate.release(MANY)
    await wait_idle(gated)


# Slow readers


async def test_a_slow_consumer_gets_merged_outputs(client: EngineClient) -> None:
    async with aclosing(client.submit(make_request(max_tokens=3000))) as stream:
        outputs = [await anext(stream)]
        await wait_idle(client)
        outputs += [output async for output in stream]
    assert len(outputs) <= 4  # the gauges may fall before the last output is sent
    assert tokens_of(outputs) == counted(3, 3000)


def test_a_worker_that_does_not_read_gets_merged_outputs(path: Path) -> None:
    num_steps = 30_000
    with talking_io(path) as (io, inbox), raw_worker(path) as raw:
        raw.send(encode(AbortRequest([])))
        worker = inbox.get(timeout=PATIENCE_S)
        assert isinstance(worker, Received)
        for i in range(num_steps):
            outputs = [RequestOutput(request_id=name, token_ids=[i]) for name in ("a", "b")]
            io.send((worker.worker, output) for output in outputs)
        io.send([(worker.worker, RequestOutput(request_id=name, finish_reason="stop")) for name in ("a", "b")])
        received = receive_all(raw, {"a", "b"})
    assert len(received) < num_steps / 10
    assert all(len(message.outputs) <= 2 for message in received)
    for name in ("a", "b"):
        parts = [output for message in received for output in message.outputs if output.request_id == name]
        assert tokens_of(parts) == list(range(num_steps))


def test_outputs_of_one_step_travel_together(path: Path) -> None:
    with talking_io(path) as (io, inbox), raw_worker(path) as raw:
        raw.send(encode(AbortRequest([])))
        worker = inbox.get(timeout=PATIENCE_S)
        assert isinstance(worker, Received)
        io.send([(worker.worker, RequestOutput(request_id=str(i), token_ids=[i])) for i in range(50)])
        assert len(receive(raw).outputs) == 50


def test_an_idle_worker_that_vanished_is_noticed(path: Path) -> None:
    with talking_io(path) as (_, inbox):
        with raw_worker(path) as raw:
            raw.send(encode(AbortRequest([])))
            joined = inbox.get(timeout=PATIENCE_S)
        lost = inbox.get(timeout=PATIENCE_S)
    assert isinstance(joined, Received)
    assert lost == WorkerLost(joined.worker)


def test_a_worker_waits_while_no_file_can_be_opened(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with talking_io(path) as (_, inbox), raw_worker(path) as old, ExitStack() as stack:
        old.receive()
        with no_more_files(but=1):
            new = stack.enter_context(raw_worker(path))
            while not any("not accepted" in record.message for record in caplog.records):
                time.sleep(0.01)
            old.send(encode(AbortRequest([])))
            assert isinstance(inbox.get(timeout=PATIENCE_S), Received)
        assert isinstance(decode_reply(new.receive()), Ping)


# Garbage


async def test_malformed_messages_are_dropped(
    client: EngineClient, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with raw_worker(path) as raw:
        for message in (b"", b"\xc1garbage", encode(InfoRequest(1)) + b"more", b"\x91" * 100_000, os.urandom(99)):
            raw.send(message)
        raw.send(encode(InfoRequest(2)))
        while not isinstance(decode_reply(reply := raw.receive()), EngineInfo):
            pass
        assert b"ready" in reply
    assert sum("malformed" in record.message for record in caplog.records) == 5
    assert tokens_of(await collect(client, make_request())) == counted(3, 5)


async def test_what_is_no_message_ends_the_connection(
    client: EngineClient, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for garbage in (b"\xff" * 8, b"GET / HTTP/1.1\r\nHost: box\r\n\r\n"):
        with raw_worker(path) as raw:
            raw.send_bytes(garbage)
            with pytest.raises(EOFError):
                raw.receive_all()
    assert sum("worker dropped" in record.message for record in caplog.records) == 2
    assert tokens_of(await collect(client, make_request())) == counted(3, 5)


async def test_messages_may_come_in_pieces_and_together(client: EngineClient, path: Path) -> None:
    asked = [pack_frame(encode(InfoRequest(i))) for i in range(100)]
    with raw_worker(path) as raw:
        for byte in b"".join(asked[:3]):
            raw.send_bytes(bytes([byte]))
        raw.send_bytes(b"".join(asked[3:]))
        call_ids: list[int] = []
        while len(call_ids) < len(asked):
            reply = decode_reply(raw.receive())
            call_ids += [reply.call_id] if isinstance(reply, EngineInfo) else []
    assert call_ids == list(range(100))


async def test_a_malformed_reply_is_dropped(path: Path) -> None:
    async with fake_engine(path) as engine, connected_client(path) as client:
        await engine.send(b"\xc1")
        asking = asyncio.ensure_future(client.info(PATIENCE_S))
        request = decode_request(await engine.receive())
        assert isinstance(request, InfoRequest)
        await engine.send(encode(Status().make_info(request.call_id)))
        assert (await asking).phase == "starting"


async def test_a_reply_that_is_no_message_is_the_end_of_that_engine(path: Path) -> None:
    async with fake_engine(path) as engine, connected_client(path) as client:
        await engine.send(encode(Ping("one")))
        asking = asyncio.ensure_future(collect(client, make_request()))
        await engine.receive()
        await engine.send_bytes(b"\xff" * 9)
        with pytest.raises(EngineLostError, match="closed"):
            await asking


# Lifetimes


async def test_nobody_there_is_told_soon(path: Path) -> None:
    async with connected_client(path, connect_timeout_s=0.05) as client, asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            with pytest.raises(EngineUnavailableError, match="no engine answers"):
                await collect(client, make_request())
            with pytest.raises(EngineUnavailableError):
                await client.info()


async def test_a_silent_engine_makes_info_time_out(path: Path) -> None:
    async with fake_engine(path) as engine, connected_client(path) as client:
        await engine.send(encode(Ping("one")))
        with pytest.raises(EngineUnavailableError, match=r"did not answer within 0\.2 s"):
            await client.info(0.2)


async def test_an_engine_that_greets_nobody_is_not_there(path: Path) -> None:
    async with fake_engine(path), connected_client(path, connect_timeout_s=0.05) as client:
        with pytest.raises(EngineUnavailableError, match="no engine answers"):
            await collect(client, make_request())


async def test_who_hangs_up_before_a_word_is_called_again_a_moment_later(path: Path) -> None:
    calls: asyncio.Queue[None] = asyncio.Queue()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        writer.close()
        calls.put_nowait(None)

    async with connected_client(path, connect_timeout_s=PATIENCE_S) as client:
        begun_s = time.monotonic()
        async with await asyncio.start_unix_server(hang_up, path):
            for _ in range(5):
                await asyncio.wait_for(calls.get(), PATIENCE_S)
        assert time.monotonic() - begun_s > 3 * RECONNECT_S
        with running_engine(path, CountingRunner()):
            await wait_ready(client)


async def test_a_client_waits_a_moment_for_its_first_connection(path: Path) -> None:
    async with connected_client(path, connect_timeout_s=PATIENCE_S) as client:
        asking = asyncio.ensure_future(client.info(PATIENCE_S))
        await asyncio.sleep(0)
        with running_engine(path, CountingRunner()):
            assert (await asking).phase


async def test_an_engine_with_another_id_ends_what_runs(path: Path) -> None:
    async with fake_engine(path) as engine, connected_client(path) as client:
        await engine.send(encode(Ping("one")))
        asking = asyncio.ensure_future(collect(client, make_request()))
        await engine.receive()
        for engine_id in ("one", "one", "two"):
            await engine.send(encode(Ping(engine_id)))
        with pytest.raises(EngineLostError, match="replaced"):
            await asking


async def test_a_silent_engine_is_lost_where_a_timeout_is_set(path: Path) -> None:
    async with fake_engine(path) as engine, connected_client(path, engine_timeout_s=0.3) as client:
        await engine.send(encode(Ping("one")))
        with pytest.raises(EngineLostError, match="silent"):
            await collect(client, make_request())


async def test_a_stopped_engine_says_so(path: Path, gate: threading.Semaphore) -> None:
    async with connected_client(path) as client:
        with running_engine(path, CountingRunner(gate=gate)) as server:
            await wait_ready(client)
            running = asyncio.ensure_future(collect(client, make_request()))
            await wait_for_info(client, lambda info: info.num_running == 1)
            server.stop()
            with pytest.raises(EngineUnavailableError, match="stopping"):
                await collect(client, make_request())
            assert not (await client.info()).is_ready
            gate.release(9)
            with pytest.raises(EngineLostError):  # whoever waits for it submits it to the next engine
                await running
    assert os.listdir(path.parent) == []


async def test_a_client_leaves_nothing_open(path: Path) -> None:
    with running_engine(path, CountingRunner()):
        await _use_client(path)
        before = await _num_open_below(10_000), threading.active_count()
        for _ in range(5):
            await _use_client(path)
        assert (await _num_open_below(before[0]), threading.active_count()) == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_client_may_be_closed_while_it_connects(path: Path, num_turns: int) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
    with running_engine(path, CountingRunner()):
        before = await _num_open_below(10_000)
        async with connected_client(path) as client:
            asking = asyncio.ensure_future(collect(client, make_request(max_tokens=FOREVER)))
            for _ in range(num_turns):
                await asyncio.sleep(0)
        with pytest.raises(EngineUnavailableError):
            await asking
        assert await _num_open_below(before) == before
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert faults == []


async def _num_open_below(limit: int) -> int:
    """Open file descriptors, once the engine's end (in this process, too) has let go of its own."""
    for _ in range(300):
        await asyncio.sleep(0.01)
        if (num_open := len(os.listdir("/proc/self/fd"))) <= limit:
            break
    return num_open


async def _use_client(path: Path) -> None:
    async with connected_client(path) as client:
        await wait_ready(client)
        async with aclosing(client.submit(make_request(max_tokens=FOREVER))) as outputs:
            await anext(outputs)


async def test_closing_twice_or_unstarted_is_fine(path: Path) -> None:
    client = EngineClient(path)
    await client.close()
    await client.start()
    await client.close()
    await client.close()
    with pytest.raises(EngineUnavailableError, match="closed"):
        await client.info()


def test_the_socket_is_private(path: Path) -> None:
    with running_engine(path, CountingRunner()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_long_path_is_refused_by_both_ends(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 108)
    for make in (EngineClient, lambda path: EngineServer(make_config(path))):
        with pytest.raises(ConfigError, match="a unix socket allows 107"):
            make(path)


def test_the_longest_path_works(tmp_path: Path) -> None:
    with socket_folder() as folder:
        path = folder / ("x" * (107 - len(str(folder)) - 1))
        with running_engine(path, CountingRunner()):
            assert path.is_socket()


def test_a_socket_in_use_is_not_taken(path: Path) -> None:
    with running_engine(path, CountingRunner()), pytest.raises(ConfigError, match="another engine listens"):
        EngineServer(make_config(path))


def test_a_file_that_is_no_socket_is_not_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        EngineServer(make_config(path))
    assert path.read_text() == "precious"


def test_a_missing_folder_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on .*: no such file"):
        EngineServer(make_config(path / "missing" / "engine.sock"))


# Both ends, raw


class raw_worker:
    """A worker without our client."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(str(path))
        self._reader = FrameReader()
        self._received: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def send(self, message: bytes) -> None:
        self.send_bytes(pack_frame(message))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """Raises EOFError once the engine has closed the connection."""
        while not self._received:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._received = self._reader.feed(data)
        return self._received.pop(0)

    def receive_all(self) -> None:
        """Raises EOFError, sooner or later."""
        while True:
            self.receive()


@contextmanager
def no_more_files(*, but: int) -> Iterator[None]:
    """This process may open that many files, and no other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + but, hard))
        opened: list[int] = []
        stack.callback(lambda: [os.close(number) for number in opened])
        while True:
            try:
                opened.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(but):
            os.close(opened.pop())
        yield


def receive(raw: raw_worker) -> Outputs:
    while True:
        reply = decode_reply(raw.receive())
        if isinstance(reply, Outputs):
            return reply


def receive_all(raw: raw_worker, request_ids: set[str]) -> list[Outputs]:
    """Until each request has finished."""
    received: list[Outputs] = []
    finished: set[str] = set()
    while finished != request_ids:
        received.append(receive(raw))
        finished |= {output.request_id for output in received[-1].outputs if output.finish_reason}
    return received


class talking_io:
    """An IO thread without a busy loop behind it."""

    def __init__(self, path: Path) -> None:
        self._inbox: SimpleQueue[InboxItem] = SimpleQueue()
        self._io = IOThread(path, Status(), self._inbox, QueueGate(1024, 262144, 128))

    def __enter__(self) -> tuple[IOThread, SimpleQueue[InboxItem]]:
        self._io.start()
        return self._io, self._inbox

    def __exit__(self, *exc: object) -> None:
        self._io.stop()


class fake_engine:
    """Says what the test says, to one client."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._joined: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._talk, self._path)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        if self._joined.done():
            self._joined.result().close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._joined.done():
            self._joined.set_result(writer)
        frames = FrameReader()
        while data := await reader.read(65536):
            for message in frames.feed(data):
                self._messages.put_nowait(message)

    async def send(self, message: bytes) -> None:
        await self.send_bytes(pack_frame(message))

    async def send_bytes(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            (await self._joined).write(data)

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self._messages.get()
