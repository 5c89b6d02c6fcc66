"""The scheduling policies: in which order requests wait, and who gives way when blocks run out.

A new policy is a queue, a choice of victim and a line in `POLICIES`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import Request


class WaitingQueue(Protocol):
    """Requests that wait, best first."""

    def push(self, request: Request) -> None:
        """Add a new request."""

    def push_front(self, request: Request) -> None:
        """Put back one that was scheduled or at the head before."""

    def peek(self) -> Request:
        """The head; the queue is not empty."""

    def pop(self) -> Request:
        """Remove the head; the queue is not empty."""

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere."""

    def __len__(self) -> int: ...


class FcfsQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def push(self, request: Request) -> None:
        """Add at the end."""
        self._requests[request.request_id] = request

    def push_front(self, request: Request) -> None:
        """Add at the front."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def peek(self) -> Request:
        """The one that waits longest."""
        return next(iter(self._requests.values()))

    def pop(self) -> Request:
        """Remove the one that waits longest."""
        return self._requests.popitem(last=False)[1]

    def remove(self, request: Request) -> None:
        """Remove from anywhere."""
        del self._requests[request.request_id]

    def __len__(self) -> int:
        return len(self._requests)


class PriorityQueue:
    """Lower priority number first, then earlier arrival. Removed requests stay in the heap until they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Request]] = []
        self._requests: dict[str, Request] = {}

    def push(self, request: Request) -> None:
        """Add where it belongs."""
        self._requests[request.request_id] = request
        heapq.heappush(self._heap, (request.order, request))

    push_front = push

    def peek(self) -> Request:
        """The best one."""
        while self._requests.get(self._heap[0][1].request_id) is not self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Request:
        """Remove the best one."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._requests[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Remove from anywhere."""
        del self._requests[request.request_id]

    def __len__(self) -> int:
        return len(self._requests)


def last_running(running: Sequence[Request]) -> Request:
    """The one admitted last."""
    return running[-1]


def worst_running(running: Sequence[Request]) -> Request:
    """The one that the priority queue would admit last."""
    return max(running, key=lambda request: request.order)


@dataclass(frozen=True, slots=True)
class Policy:
    """One entry of `POLICIES`."""

    make_queue: Callable[[], WaitingQueue]
    pick_victim: Callable[[Sequence[Request]], Request]


POLICIES = {
    "fcfs": Policy(FcfsQueue, last_running),
    "priority": Policy(PriorityQueue, worst_running),
}
