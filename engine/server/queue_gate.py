"""Refuses requests that would have to wait too long, in the IO thread: at once, also while a step is computed.

A request *is queued* if no free place in the running batch is left for it. It counts from the moment that it is
received: those that the busy loop has not seen yet are counted here, the others by the scheduler. Nothing is taken
that is over the limit, whichever API worker it comes from; nothing that was taken is dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from engine.messages import GenerateRequest, RequestGroup, RequestOutput
from engine.queue_load import QueueLoad

_MAX_GROUPS = 1024  # whose members are still to come; those that never do are forgotten beyond this


class QueueGate:
    """`check` is the IO thread's, `taking` the busy loop's."""

    def __init__(self, max_requests: int, max_tokens: int, max_num_seqs: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_num_seqs = max_num_seqs
        self._load: Callable[[], QueueLoad] = lambda: QueueLoad(0, 0, max_num_seqs)
        self._lock = threading.Lock()
        self._num_received = 0  # not taken by the busy loop yet
        self._num_received_tokens = 0
        self._groups: OrderedDict[tuple[bytes, str], RequestOutput | None] = OrderedDict()

    def watch(self, load: Callable[[], QueueLoad]) -> None:
        """Ask `load` from now on for those whom the busy loop has taken."""
        self._load = load

    def check(self, worker: bytes, request: GenerateRequest) -> RequestOutput | None:
        """Count the request in, or return its refusal. Members of a group all get what the first one got."""
        with self._lock:
            refusal = None if request.was_admitted else self._find_refusal(worker, request)
            if refusal is None:
                self._num_received += 1
                self._num_received_tokens += _num_tokens(request)
                return None
        return msgspec.structs.replace(refusal, request_id=request.request_id)

    @contextmanager
    def taking(self, request: GenerateRequest) -> Iterator[None]:
        """While in here, the request changes over from those received to those that the scheduler counts."""
        with self._lock:
            try:
                yield
            finally:
                self._num_received -= 1
                self._num_received_tokens -= _num_tokens(request)

    def _find_refusal(self, worker: bytes, request: GenerateRequest) -> RequestOutput | None:
        group = request.group
        if group is None:
            return self._decide(RequestGroup(group_id="", num_requests=1, num_tokens=_num_tokens(request)))
        key = worker, group.group_id
        if key not in self._groups:
            self._groups[key] = self._decide(group)
            if len(self._groups) > _MAX_GROUPS:
                self._groups.popitem(last=False)
        return self._groups[key]

    def _decide(self, group: RequestGroup) -> RequestOutput | None:
        most = self._max_num_seqs + self._max_requests
        if group.num_requests > most:
            problem = f"n times the number of prompts is {group.num_requests}, but at most {most} fit into the queue"
            return RequestOutput(request_id="", finish_reason="error", error=problem, error_param="n")
        load = self._load()
        num_waiting = self._num_received + load.num_requests
        num_tokens = self._num_received_tokens + load.num_tokens
        if num_waiting - load.num_free_seats + group.num_requests > self._max_requests:
            return _refuse(f"{num_waiting} requests wait", "max_num_queued_reqs")
        if num_waiting and num_tokens + group.num_tokens > self._max_tokens:
            return _refuse(f"{num_tokens} prompt tokens wait", "max_num_queued_tokens")
        return None


def _refuse(what: str, limit: str) -> RequestOutput:
    error = f"the server is full: {what} ({limit})"
    return RequestOutput(request_id="", finish_reason="error", error=error, queue_limit=limit)


def _num_tokens(request: GenerateRequest) -> int:
    return len(request.prompt_token_ids) + len(request.resumed_token_ids)
