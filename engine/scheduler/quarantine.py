"""Suspects: requests that were in hand when an engine failed. One at a time is on trial, in steps that are its alone.

Whoever gets past the place where the engine failed is as good as any other; the next fault in such a step says who
it was. Trial steps take turns with everybody else's. Who is a suspect is for `engine.suspects` to know.
"""

from __future__ import annotations

import heapq

from engine.request import Request

TRIAL_TOKENS = 4  # beyond the place where it was when the engine failed


class Quarantine:
    """Holds those that wait for their trial (the least suspected first), and the one on trial."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Request]] = []
        self._had_turn = False
        self.on_trial: Request | None = None

    def __len__(self) -> int:
        """Suspects that wait."""
        return len(self._waiting)

    @property
    def num_on_trial(self) -> int:
        """1 while one holds blocks."""
        return int(self.on_trial is not None)

    def push(self, request: Request) -> None:
        """Let a suspect wait."""
        heapq.heappush(self._waiting, (request.num_faults, request.arrival_index, request))

    def remove(self, request: Request) -> None:
        """Take out one that waits."""
        self._waiting = [entry for entry in self._waiting if entry[2] is not request]
        heapq.heapify(self._waiting)

    def take_turn(self, others_have_work: bool) -> bool:
        """Whether the next step is for the trial."""
        has_work = self.on_trial is not None or bool(self._waiting)
        self._had_turn = has_work and not (self._had_turn and others_have_work)
        return self._had_turn

    def pick(self) -> Request | None:
        """Whose trial it is: the one that has begun, or the next that can run; that one goes on waiting."""
        if self.on_trial is not None:
            return self.on_trial
        return next((entry[2] for entry in sorted(self._waiting) if not entry[2].awaits_grammar), None)

    def begin(self, request: Request) -> None:
        """The trial begins: it holds blocks."""
        self.remove(request)
        self.on_trial = request

    def release(self) -> Request | None:
        """The one on trial if it has shown to be harmless; it is no suspect any more."""
        request = self.on_trial
        if request is None or request.num_output_tokens < request.trial_end:
            return None
        self.on_trial = None
        request.num_faults = 0
        return request

    def release_finished(self) -> None:
        """The one on trial may have ended."""
        if self.on_trial is not None and self.on_trial.is_finished:
            self.on_trial = None
