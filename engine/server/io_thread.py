"""The IO thread: owns the workers' connections and what comes over them.

It answers what needs no step (info, metrics) itself, also while the model is loading, and hands everything else to
the busy loop through `inbox`. Outputs are sent from the busy loop's own thread, which spares each token a change of
threads; what a worker does not take at once is merged, and sent by the IO thread when there is room. A worker that
vanished is reported as `WorkerLost`.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import msgspec

from engine.messages import (
    EngineRequest,
    GenerateRequest,
    InfoRequest,
    MetricsReply,
    MetricsRequest,
    Ping,
    RequestOutput,
    decode_request,
)
from engine.server.queue_gate import QueueGate
from engine.server.socket_file import bind
from engine.server.status import Status
from engine.server.worker_link import Message, WorkerLink

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 1.0
GOODBYE_S = 0.5  # how long the last outputs may take


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


class IOThread(threading.Thread):
    """Binds on construction (raises ConfigError), talks once started, and removes the socket file when stopped."""

    def __init__(self, socket_path: Path, status: Status, inbox: SimpleQueue[InboxItem], gate: QueueGate) -> None:
        super().__init__(name="engine-io", daemon=True)
        self._path = socket_path.absolute()
        self._status = status
        self._inbox = inbox
        self._gate = gate
        self._lock = threading.Lock()  # for sending, which both threads do
        self._links: dict[bytes, WorkerLink] = {}
        self._links_by_number: dict[int, WorkerLink] = {}  # of their file descriptors; this thread's own
        self._num_accepted = 0
        self._stop_at_s: float | None = None
        self._was_ready = False  # as the workers were told
        self._listener = bind(self._path)
        self._is_listening = False
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wakeup, select.EPOLLIN)

    def send(self, messages: Iterable[tuple[bytes, Message]]) -> None:
        """Send to each worker what is its own, as far as it reads; never waits. Called from the busy loop."""
        with self._lock:
            touched: dict[bytes, WorkerLink] = {}
            for identity, message in messages:
                link = self._links.get(identity)
                if link is not None:
                    link.add(message)
                    touched[identity] = link
            for link in touched.values():
                self._flush(link)

    def wake(self) -> None:
        """The status changed: workers are told at once. Called from any thread."""
        os.eventfd_write(self._wakeup, 1)

    def stop(self) -> None:
        """Send what was handed over, within bounds, close the socket and remove its file; returns when all is done."""
        self._stop_at_s = time.monotonic() + GOODBYE_S
        self.wake()
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
        ping_at_s = 0.0
        while not self._is_done():
            is_ready = self._status.unavailable is None
            if is_ready != self._was_ready or time.monotonic() >= ping_at_s:
                self._ping_all(is_ready)
                self._listen()
                ping_at_s = time.monotonic() + PING_INTERVAL_S
            until_s = min(ping_at_s, self._stop_at_s or ping_at_s)
            for number, _ in self._poll.poll(max(until_s - time.monotonic(), 0.0)):
                if number == self._wakeup:
                    os.eventfd_read(self._wakeup)
                elif number == self._listener.fileno():
                    self._accept()
                else:
                    self._attend(self._links_by_number[number])

    def _is_done(self) -> bool:
        if self._stop_at_s is None:
            return False
        with self._lock:
            is_all_sent = not any(link.has_unsent for link in self._links.values())
        return is_all_sent or time.monotonic() >= self._stop_at_s

    def _listen(self) -> None:
        if not self._is_listening:
            self._poll.register(self._listener, select.EPOLLIN)
            self._is_listening = True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError as error:
            # No more files may be opened. Who is connected goes on; the others are looked at again with the next ping.
            logger.warning("worker not accepted error=%s", error)
            self._poll.unregister(self._listener)
            self._is_listening = False
            return
        self._num_accepted += 1
        link = WorkerLink(b"%d" % self._num_accepted, connection)
        self._links_by_number[link.fileno()] = link
        self._poll.register(link, select.EPOLLIN)
        with self._lock:
            self._links[link.identity] = link
            # Only now the client counts as connected: an engine that is stopped greets nobody.
            link.add(Ping(self._status.engine_id, self._was_ready))
            self._flush(link)
        logger.debug("worker joined worker=%s", link.identity.decode())

    def _attend(self, link: WorkerLink) -> None:
        """Take what has come from the worker, and send what there is room for."""
        answers = [answer for data in link.receive() if (answer := self._take(link, data)) is not None]
        is_ready = self._status.unavailable is None
        if answers and is_ready != self._was_ready:
            self._ping_all(is_ready)  # what one knows who asks, all know
        with self._lock:
            for answer in answers:
                link.add(answer)
            self._flush(link)
            if not link.is_lost:
                return
            del self._links[link.identity]
        self._lose(link)

    def _take(self, link: WorkerLink, data: bytes) -> Message | None:
        request = _decode(link.identity, data)
        try:
            return None if request is None else self._answer(link.identity, request)
        except Exception:
            # A metric that cannot be read must not end everybody's requests.
            logger.exception("request could not be answered worker=%s", link.identity.decode())
            return None

    def _answer(self, worker: bytes, request: EngineRequest) -> Message | None:
        """What can be said at once; None where it is up to the busy loop."""
        if isinstance(request, InfoRequest):
            return self._status.make_info(request.call_id)
        if isinstance(request, MetricsRequest):
            return MetricsReply(request.call_id, self._status.metrics_text(request.openmetrics))
        if isinstance(request, GenerateRequest) and (refusal := self._find_refusal(worker, request)) is not None:
            return refusal
        self._inbox.put(Received(worker, request))
        return None

    def _find_refusal(self, worker: bytes, request: GenerateRequest) -> RequestOutput | None:
        reason = self._status.unavailable
        if reason is not None:
            return make_unavailable(request.request_id, reason)
        return self._gate.check(worker, request)

    def _flush(self, link: WorkerLink) -> None:
        """Send, and have the poll say when there is room for what is left. With the lock held."""
        link.flush()
        if link.has_unsent != link.is_awaited:
            link.is_awaited = link.has_unsent
            self._poll.modify(link, select.EPOLLIN | (select.EPOLLOUT if link.is_awaited else 0))

    def _lose(self, link: WorkerLink) -> None:
        self._poll.unregister(link)
        del self._links_by_number[link.fileno()]
        link.close()
        self._inbox.put(WorkerLost(link.identity))
        logger.debug("worker vanished worker=%s", link.identity.decode())

    def _ping_all(self, is_ready: bool) -> None:
        ping = Ping(self._status.engine_id, is_ready)
        with self._lock:
            for link in self._links.values():
                if not link.has_unsent:  # else it hears enough
                    link.add(ping)
                    self._flush(link)
        self._was_ready = is_ready

    def _close(self) -> None:
        # First, while nobody else can have bound there: afterwards the file may be the next engine's.
        self._path.unlink(missing_ok=True)
        self._listener.close()
        with self._lock:
            links, self._links = self._links, {}
        for link in links.values():
            link.close()
        self._poll.close()


def make_unavailable(request_id: str, reason: str) -> RequestOutput:
    """The refusal that a client turns into EngineUnavailableError."""
    return RequestOutput(request_id=request_id, finish_reason="error", error=reason, unavailable=True)


def _decode(worker: bytes, data: bytes) -> EngineRequest | None:
    try:
        return decode_request(data)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        logger.warning("malformed message dropped worker=%s error=%r", worker.decode(), str(error))
        return None
