"""The IO thread: owns the ROUTER socket, so that the busy loop never touches the network.

It answers what needs no step (info, metrics) itself, also while the model is loading, and hands everything else to
the busy loop through `inbox`. Outputs come back through `send`. A worker that reads slowly has its outputs merged, at
most one a request; a worker that vanished is reported as `WorkerLost`.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec
import zmq

from engine.messages import (
    EngineReply,
    EngineRequest,
    GenerateRequest,
    InfoRequest,
    MetricsReply,
    MetricsRequest,
    Outputs,
    Ping,
    RequestOutput,
    decode_request,
    encode,
    merge_outputs,
)
from engine.server.queue_gate import QueueGate
from engine.server.socket_file import bind
from engine.server.status import Status

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 1.0
RETRY_INTERVAL_S = 0.01  # between tries to reach a worker that does not read
GOODBYE_S = 0.5  # how long the last outputs may take
MESSAGES_A_TURN = 256
_eventfd_write = ctypes.PyDLL(None).eventfd_write
_eventfd_write.argtypes = (ctypes.c_int, ctypes.c_uint64)
_MORE_NOW = int(zmq.SNDMORE | zmq.NOBLOCK)
MAX_REPLIES = 32  # answers kept for a worker that does not read


@dataclass(frozen=True, slots=True)
class Received:
    """A worker's request, for the busy loop."""

    worker: bytes
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker is gone: nobody reads the outputs of its requests."""

    worker: bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """End the busy loop; with `fault` because the IO thread failed."""

    fault: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """There is work again that did not come from a worker."""


InboxItem = Received | WorkerLost | Wake | Stop


@dataclass(slots=True)
class _Worker:
    identity: bytes
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    replies: deque[EngineReply] = field(default_factory=lambda: deque(maxlen=MAX_REPLIES))

    def add(self, output: RequestOutput) -> None:
        pending = self.outputs.get(output.request_id)
        if pending is None:
            self.outputs[output.request_id] = output
        else:
            merge_outputs(pending, output)


class IOThread(threading.Thread):
    """Binds on construction (raises ConfigError), talks once started, and removes the socket file when stopped."""

    def __init__(self, socket_path: Path, status: Status, inbox: SimpleQueue[InboxItem], gate: QueueGate) -> None:
        super().__init__(name="engine-io", daemon=True)
        self._path = socket_path.absolute()
        self._status = status
        self._inbox = inbox
        self._gate = gate
        self._outbox: deque[tuple[bytes, RequestOutput | EngineReply]] = deque()
        self._workers: dict[bytes, _Worker] = {}
        self._dirty: dict[bytes, _Worker] = {}  # those with something left to send
        self._stop_at_s: float | None = None
        self._was_ready = False  # as the workers were told
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._router = bind(self._context, self._path)
        except BaseException:
            self._context.term()
            raise
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wakeup, zmq.POLLIN)

    def send(self, messages: Iterable[tuple[bytes, RequestOutput | EngineReply]]) -> None:
        """Hand over outputs and replies, each with its worker. Returns at once; called from the busy loop."""
        self._outbox.extend(messages)
        # As `os.eventfd_write`, but with the interpreter's lock held: else this thread takes it and sends everything
        # before the busy loop, which has a step to prepare, gets it again.
        _eventfd_write(self._wakeup, 1)

    def wake(self) -> None:
        """The status changed: workers are told at once. Called from any thread."""
        os.eventfd_write(self._wakeup, 1)

    def stop(self) -> None:
        """Send what was handed over, within bounds, close the socket and remove its file; returns when all is done."""
        self._stop_at_s = time.monotonic() + GOODBYE_S
        os.eventfd_write(self._wakeup, 1)
        self.join()
        os.close(self._wakeup)

    def run(self) -> None:
        """Talk until stopped."""
        try:
            self._talk()
        except BaseException as error:
            logger.exception("io thread failed")
            self._inbox.put(Stop(fault=error))
        finally:
            self._close()

    def _talk(self) -> None:
        ping_at_s = time.monotonic() + PING_INTERVAL_S
        while not self._is_done():
            events = dict(self._poller.poll(self._poll_ms(ping_at_s)))
            if self._wakeup in events:
                os.eventfd_read(self._wakeup)
            if self._router in events:
                self._receive()
            self._collect()
            is_ready = self._status.unavailable is None
            if is_ready != self._was_ready or time.monotonic() >= ping_at_s:
                # After what was asked and before the answers go out: what one knows who asks, all know.
                self._ping_all(is_ready)
                ping_at_s = time.monotonic() + PING_INTERVAL_S
            self._flush()

    def _is_done(self) -> bool:
        if self._stop_at_s is None:
            return False
        return time.monotonic() >= self._stop_at_s or not (self._outbox or self._dirty)

    def _poll_ms(self, ping_at_s: float) -> int:
        wait_s = RETRY_INTERVAL_S if self._dirty else max(ping_at_s - time.monotonic(), 0.0)
        return int(wait_s * 1000) + 1

    def _receive(self) -> None:
        for _ in range(MESSAGES_A_TURN):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(frames[0], frames[1:])

    def _take(self, identity: bytes, frames: list[bytes]) -> None:
        worker = self._workers.get(identity)
        if worker is None:
            worker = self._workers[identity] = _Worker(identity)
            logger.debug("worker joined worker=%s", identity.hex())
        request = _decode(identity, frames)
        if request is None:
            return
        try:
            self._answer(worker, request)
        except Exception:
            # A metric that cannot be read must not end everybody's requests.
            logger.exception("request could not be answered worker=%s", identity.hex())

    def _answer(self, worker: _Worker, request: EngineRequest) -> None:
        if isinstance(request, InfoRequest):
            self._reply(worker, self._status.make_info(request.call_id))
        elif isinstance(request, MetricsRequest):
            self._reply(worker, MetricsReply(request.call_id, self._status.metrics_text(request.openmetrics)))
        elif isinstance(request, GenerateRequest) and (refusal := self._find_refusal(worker, request)) is not None:
            worker.add(refusal)
            self._dirty[worker.identity] = worker
        else:
            self._inbox.put(Received(worker.identity, request))

    def _find_refusal(self, worker: _Worker, request: GenerateRequest) -> RequestOutput | None:
        reason = self._status.unavailable
        if reason is not None:
            return make_unavailable(request.request_id, reason)
        return self._gate.check(worker.identity, request)

    def _reply(self, worker: _Worker, reply: EngineReply) -> None:
        worker.replies.append(reply)
        self._dirty[worker.identity] = worker

    def _collect(self) -> None:
        while self._outbox:
            identity, message = self._outbox.popleft()
            worker = self._workers.get(identity)
            if worker is None:
                continue
            if isinstance(message, RequestOutput):
                worker.add(message)
            else:
                worker.replies.append(message)
            self._dirty[identity] = worker

    def _flush(self) -> None:
        for worker in list(self._dirty.values()):
            self._send_pending(worker)

    def _send_pending(self, worker: _Worker) -> None:
        while worker.replies:
            if not self._begin(worker):
                return
            self._router.send(encode(worker.replies.popleft()))
        if worker.outputs:
            if not self._begin(worker):
                return
            # Encoded only now: while a worker does not read, its outputs are merged but never encoded in vain.
            self._router.send(encode(Outputs(list(worker.outputs.values()))))
            worker.outputs.clear()
        del self._dirty[worker.identity]

    def _begin(self, worker: _Worker) -> bool:
        """Open a message to the worker; False where it reads slowly or has vanished."""
        try:
            self._router.send(worker.identity, _MORE_NOW)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._lose(worker)
            return False
        return True

    def _lose(self, worker: _Worker) -> None:
        del self._workers[worker.identity]
        self._dirty.pop(worker.identity, None)
        self._inbox.put(WorkerLost(worker.identity))
        logger.debug("worker vanished worker=%s", worker.identity.hex())

    def _ping_all(self, is_ready: bool) -> None:
        ping = encode(Ping(self._status.engine_id, is_ready))
        for worker in list(self._workers.values()):
            if self._begin(worker):
                self._router.send(ping)
        self._was_ready = is_ready

    def _close(self) -> None:
        # First, while nobody else can have bound there: afterwards the file may be the next engine's.
        self._path.unlink(missing_ok=True)
        self._router.close(linger=int(GOODBYE_S * 1000))
        self._context.term()


def make_unavailable(request_id: str, reason: str) -> RequestOutput:
    """The refusal that a client turns into EngineUnavailableError."""
    return RequestOutput(request_id=request_id, finish_reason="error", error=reason, unavailable=True)


def _decode(identity: bytes, frames: list[bytes]) -> EngineRequest | None:
    try:
        (frame,) = frames
        return decode_request(frame)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        logger.warning("malformed message dropped worker=%s error=%r", identity.hex(), str(error))
        return None
