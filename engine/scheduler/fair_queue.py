"""First come, first served within a tenant; among tenants, the one that was served least is next.

Source of the rule: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (2024). A
tenant's counter grows with the tokens that are computed for it. One that begins to wait starts no lower than the
others who wait, so that nobody saves up service; of two that were served alike, the one with the shorter line is next.
With one tenant this is plain first come, first served.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from engine.request import Request, RequestStatus

OUTPUT_WEIGHT = 2
"""Prompt tokens that an output token counts as: it takes a row in a step of its own."""

CROWD_WEIGHT = 16
"""Prompt tokens that a request in hand counts as when a tenant is picked whose steps are whole: the one or two requests
of a quiet tenant are over before it has had so much more than a crowd.
"""

_get_tenant = attrgetter("tenant")


class FairQueue:
    """Waiting requests, one line a tenant. Preempted ones stand before all lines: their turn had come already."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._num_requests = 0
        self._preempted: OrderedDict[str, Request] = OrderedDict()
        self._lines: defaultdict[str, OrderedDict[str, Request]] = defaultdict(OrderedDict)
        self._served: defaultdict[str, int] = defaultdict(int)
        self._last_tenant = ""  # whose line was the last to become empty

    def push(self, request: Request) -> None:
        """Add at the end of the tenant's line."""
        if request.tenant not in self._lines:
            self._served[request.tenant] = max(self._served[request.tenant], self._least_served())
        self._insert(request)

    def push_front(self, request: Request) -> None:
        """Put back at the front of the tenant's line, or of everything if it was preempted."""
        self._insert(request).move_to_end(request.request_id, last=False)

    def peek(self, may_take: Callable[[str], bool]) -> Request | None:
        """The next one of those whose tenants may take something of the step; a preempted one whether or not."""
        line = self._next_line(may_take)
        return None if line is None else next(iter(line.values()))

    def pop(self, request: Request) -> None:
        """Remove the next one."""
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Remove from anywhere."""
        line = self._line_of(request)
        del line[request.request_id]
        self.num_tokens -= request.num_tokens
        self._num_requests -= 1
        if not line and line is not self._preempted:
            del self._lines[request.tenant]
            self._last_tenant = request.tenant

    def is_due_before(self, request: Request, head: Request) -> bool:
        """Whether the head is of another tenant, who was served no more than that of `request`."""
        return head.tenant != request.tenant and self._served[head.tenant] <= self._served[request.tenant]

    def must_share(self, request: Request, tenants: Iterable[str]) -> bool:
        """Whether one of these is another tenant. All of a prompt is charged when it begins, so who was served less
        tells nothing of two that are being computed.
        """
        return any(tenant != request.tenant for tenant in tenants)

    def count(self, running: Iterable[Request]) -> Counter[str]:
        """Requests of each tenant that run or wait."""
        crowds = Counter(map(_get_tenant, running))
        for tenant, line in self._lines.items():
            crowds[tenant] += len(line)
        for request in self._preempted.values():
            crowds[request.tenant] += 1
        return crowds

    def pick_favoured(self, crowds: Mapping[str, int]) -> str | None:
        """The tenant that was served least, a crowd being handicapped: its steps are long. None of one or none."""
        if len(crowds) < 2:
            return None
        return min(crowds, key=lambda tenant: self._served[tenant] + CROWD_WEIGHT * crowds[tenant])

    def charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Tokens were computed for the request's tenant."""
        self._served[request.tenant] += num_prompt_tokens + OUTPUT_WEIGHT * num_output_tokens

    def settle(self) -> None:
        """Nobody waits or runs: all are equal again."""
        self._served.clear()

    def __len__(self) -> int:
        return self._num_requests

    def _insert(self, request: Request) -> OrderedDict[str, Request]:
        line = self._line_of(request)
        line[request.request_id] = request
        self.num_tokens += request.num_tokens
        self._num_requests += 1
        return line

    def _line_of(self, request: Request) -> OrderedDict[str, Request]:
        return self._preempted if request.status is RequestStatus.PREEMPTED else self._lines[request.tenant]

    def _least_served(self) -> int:
        return min((self._served[tenant] for tenant in self._lines), default=self._served[self._last_tenant])

    def _next_line(self, may_take: Callable[[str], bool]) -> OrderedDict[str, Request] | None:
        if self._preempted:
            return self._preempted
        lines = (line for tenant, line in self._lines.items() if may_take(tenant))
        return min(lines, key=self._turn, default=None)

    def _turn(self, line: OrderedDict[str, Request]) -> tuple[int, int, int]:
        head = next(iter(line.values()))
        return self._served[head.tenant], len(line), head.arrival_index
