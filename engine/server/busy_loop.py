"""The busy loop: takes requests from the inbox, steps the core, gives outputs to an outlet; no network here.

It also keeps whose request is whose: the core knows a request by an id of the loop's own, so that two workers may use
equal ids. Sleeps on the inbox while there is no work. Each turn is a beat in the journal, from which others see
that the loop lives.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from engine.journal import Journal
from engine.messages import (
    AbortRequest,
    EngineReply,
    GenerateRequest,
    RequestOutput,
    ResetPrefixCacheReply,
    ResetPrefixCacheRequest,
)
from engine.server.io_thread import InboxItem, Received, Stop, WorkerLost, make_unavailable
from engine.server.queue_gate import QueueGate
from engine.server.status import Gauges

logger = logging.getLogger(__name__)

IDLE_BEAT_S = 1.0


class Core(Gauges, Protocol):
    """What the loop needs of `EngineCore`."""

    def add(self, request: GenerateRequest) -> RequestOutput | None:
        """Take a request; an error output where it is refused."""

    def abort(self, request_ids: Iterable[str], finish_reason: str = "abort") -> list[RequestOutput]:
        """Drop requests; unknown ids are ignored."""

    def step(self) -> list[RequestOutput]:
        """Schedule, run, update."""

    def has_work(self) -> bool:
        """Whether a step would do something."""

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks, unless some are in use."""


class Outlet(Protocol):
    """What sends outputs to the workers: `IOThread`."""

    def send(self, messages: Iterable[tuple[bytes, RequestOutput | EngineReply]]) -> None:
        """Send what the workers take now and keep the rest for later; never waits for a worker."""


@dataclass(frozen=True, slots=True)
class _Owner:
    worker: bytes
    request_id: str  # as the worker calls it


class BusyLoop:
    """Runs until a `Stop` is in the inbox."""

    def __init__(
        self, core: Core, inbox: SimpleQueue[InboxItem], outlet: Outlet, gate: QueueGate, journal: Journal
    ) -> None:
        self._core = core
        self._journal = journal
        self._gate = gate
        self._inbox = inbox
        self._outlet = outlet
        self._owners: dict[str, _Owner] = {}  # by the core's id
        self._is_stopping = False

    def run(self) -> None:
        """Step until told to stop. Raises what a step raises.

        What still runs is left as it is: its workers lose the connection, and the next engine takes it up.
        """
        while not self._is_stopping:
            self._journal.idle()
            self._take_inbox()
            if not self._is_stopping and self._core.has_work():
                self._deliver(self._core.step())
        logger.info("busy loop ended num_left=%d", len(self._owners))
        self._refuse_rest()

    def _take_inbox(self) -> None:
        """Handle all that is there; with nothing to compute, sleep until something is, or it is time for a beat."""
        if self._inbox.empty() and self._core.has_work():
            return
        try:
            item = self._inbox.get(block=not self._core.has_work(), timeout=IDLE_BEAT_S)
            while True:
                self._handle(item)
                item = self._inbox.get_nowait()
        except Empty:
            return

    def _handle(self, item: InboxItem) -> None:
        if isinstance(item, Received):
            self._handle_request(item)
        elif isinstance(item, WorkerLost):
            self._abort_worker(item.worker)
        elif isinstance(item, Stop):
            if item.fault is not None:
                raise item.fault
            self._is_stopping = True

    def _handle_request(self, item: Received) -> None:
        request = item.request
        if isinstance(request, GenerateRequest):
            with self._gate.taking(request):
                self._add(item.worker, request)
        elif isinstance(request, AbortRequest):
            core_ids = [_core_id(item.worker, request_id) for request_id in request.request_ids]
            self._abort(core_ids, request.finish_reason)
        elif isinstance(request, ResetPrefixCacheRequest):
            reply = ResetPrefixCacheReply(request.call_id, self._core.reset_prefix_cache())
            self._outlet.send([(item.worker, reply)])

    def _add(self, worker: bytes, request: GenerateRequest) -> None:
        core_id = _core_id(worker, request.request_id)
        if core_id in self._owners:
            error = f"request_id: {request.request_id} is already in use"
            output = RequestOutput(
                request_id=request.request_id, finish_reason="error", error=error, error_param="request_id"
            )
            self._outlet.send([(worker, output)])
            return
        self._owners[core_id] = _Owner(worker, request.request_id)
        refusal = self._try_add(msgspec.structs.replace(request, request_id=core_id))
        if refusal is not None:
            self._deliver([refusal])

    def _try_add(self, request: GenerateRequest) -> RequestOutput | None:
        try:
            return self._core.add(request)
        except Exception:
            # One strange request must not take down everybody else's.
            logger.exception("request could not be added request_id=%s", request.request_id)
            self._core.abort([request.request_id])
            return RequestOutput(request_id=request.request_id, finish_reason="error", error="internal error")

    def _abort_worker(self, worker: bytes) -> None:
        core_ids = [core_id for core_id, owner in self._owners.items() if owner.worker == worker]
        logger.info("worker vanished worker=%s num_aborted=%d", worker.decode(), len(core_ids))
        self._abort(core_ids)

    def _abort(self, core_ids: list[str], finish_reason: str = "abort") -> None:
        known = [core_id for core_id in core_ids if core_id in self._owners]
        if not known:
            return
        self._deliver(self._core.abort(known, finish_reason))
        # Whatever the core says of them, they are over for their workers.
        left = [core_id for core_id in known if core_id in self._owners]
        self._deliver([RequestOutput(request_id=core_id, finish_reason=finish_reason) for core_id in left])

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        messages: list[tuple[bytes, RequestOutput]] = []
        for output in outputs:
            owner = self._owners.get(output.request_id)
            if owner is None:
                continue
            if output.finish_reason is not None:
                del self._owners[output.request_id]
            output.request_id = owner.request_id
            messages.append((owner.worker, output))
        if messages:
            self._outlet.send(messages)

    def _refuse_rest(self) -> None:
        """Answer requests that came too late to be begun."""
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, Received) and isinstance(item.request, GenerateRequest):
                refusal = make_unavailable(item.request.request_id, "the engine is stopping")
                self._outlet.send([(item.worker, refusal)])


def _core_id(worker: bytes, request_id: str) -> str:
    return f"{worker.decode()}/{request_id}"
