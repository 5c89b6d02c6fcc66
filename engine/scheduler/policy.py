"""The scheduling policies: in which order requests wait, and who gives way when blocks run out.

A new policy is a queue, a choice of victim and a line in `POLICIES`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import Request
from engine.scheduler.fair_queue import FairQueue


class WaitingQueue(Protocol):
    """Requests that wait, best first."""

    @property
    def num_tokens(self) -> int:
        """Known tokens of all that wait."""

    def push(self, request: Request) -> None:
        """Add a new request."""

    def push_front(self, request: Request) -> None:
        """Put back one that was scheduled or at the head before."""

    def peek(self, may_take: Callable[[str], bool]) -> Request | None:
        """The head, where tenants matter the first whose tenant may take something; the queue is not empty."""

    def pop(self, request: Request) -> None:
        """Remove the head, as `peek` said."""

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere."""

    def is_due_before(self, request: Request, head: Request) -> bool:
        """Whether the head has a claim on what `request`, a running one, would take."""

    def must_share(self, request: Request, tenants: Iterable[str]) -> bool:
        """Whether `request`, a running one, must leave something to one of these, whose prompts run as well."""

    def count(self, running: Iterable[Request]) -> Counter[str]:
        """Requests of each tenant that run or wait, where tenants matter."""

    def pick_favoured(self, crowds: Mapping[str, int]) -> str | None:
        """Of the tenants who have so many requests, the one whose steps should be short; None where nobody's."""

    def charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Take note of tokens that were computed for a request."""

    def settle(self) -> None:
        """Take note that no request is left."""

    def __len__(self) -> int: ...


class PriorityQueue:
    """Lower priority number first, then earlier arrival, whoever's they are.

    Removed requests stay in the heap until they surface.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._heap: list[tuple[tuple[int, float, int], Request]] = []
        self._requests: dict[str, Request] = {}

    def push(self, request: Request) -> None:
        """Add where it belongs."""
        self._requests[request.request_id] = request
        self.num_tokens += request.num_tokens
        heapq.heappush(self._heap, (request.order, request))

    push_front = push

    def peek(self, may_take: Callable[[str], bool]) -> Request:
        """The best one."""
        while self._requests.get(self._heap[0][1].request_id) is not self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self, request: Request) -> None:
        """Remove the best one."""
        heapq.heappop(self._heap)
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Remove from anywhere."""
        del self._requests[request.request_id]
        self.num_tokens -= request.num_tokens

    def is_due_before(self, request: Request, head: Request) -> bool:
        """What runs goes on."""
        return False

    def must_share(self, request: Request, tenants: Iterable[str]) -> bool:
        """Who began first goes on."""
        return False

    def count(self, running: Iterable[Request]) -> Counter[str]:
        """None: all are equal but for their priorities."""
        return Counter()

    def pick_favoured(self, crowds: Mapping[str, int]) -> str | None:
        """Nobody's."""
        return None

    def charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Priorities are not earned or spent."""

    def settle(self) -> None:
        """Nothing is kept."""

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
    "fcfs": Policy(FairQueue, last_running),
    "priority": Policy(PriorityQueue, worst_running),
}
