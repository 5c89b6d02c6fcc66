"""The other ranks of an engine, all at once, as rank 0 has them: started, kept in step, noticed when one is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.layers.group import Alone, Group
from engine.runner.parallel.messages import Allocate, Join, encode
from engine.runner.parallel.process import RankProcess
from engine.step import Progress

if TYPE_CHECKING:
    from engine.runner.forward_pass import Work
    from engine.runner.load_plan import LoadPlan

logger = logging.getLogger(__name__)

EXPLANATION_S = 3.0  # a failed sum is noticed before the death that it comes from
LAST_RESORT_S = 30.0  # after a loss: a step that waits on a GPU for the lost rank never ends by itself


class Ranks:
    """Nobody, until `start`: then the ranks 1 … tensor_parallel_size - 1. Used in one thread."""

    def __init__(self) -> None:
        self._processes: list[RankProcess] = []
        self._store_fd: int | None = None
        self._loss: EngineError | None = None
        self._is_lost, self._is_closed = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._report: Callable[[EngineError], None] | None = None

    def start(self, config: EngineConfig, implementation: str | None) -> None:
        """Start the processes, which begin to load; none for a size of 1."""
        if config.tensor_parallel_size == 1:
            return
        self._store_fd = os.memfd_create("breadbox-ranks")
        for rank in range(1, config.tensor_parallel_size):
            self._processes.append(RankProcess(Join(rank, config, implementation, self._store_fd), self._lose))

    def join(self, plan: LoadPlan) -> Group:
        """Wait until all run, and meet them."""
        if self._store_fd is None:
            return Alone()
        from engine.runner.parallel.group import join_group

        self._wait("started")
        size = len(self._processes) + 1
        # The store's file stays open: libraries look into it again, by the number, as long as they live.
        return join_group(0, size, plan.device, self._store_fd, keeps_order=plan.is_batch_invariant)

    def fewest_blocks(self, count: Callable[[], int]) -> int:
        """The KV blocks that every rank has room for; `count` finds rank 0's, when all have loaded."""
        self._wait("loaded")
        own = count()
        return min([own, *(process.wait_count() for process in self._processes)])

    def allocate(self, num_blocks: int) -> None:
        """Have the KV caches made; goes on at once, since graphs are captured by all ranks together."""
        self._send(encode(Allocate(num_blocks)))

    def wait_ready(self) -> None:
        """Until all take steps."""
        self._wait("ready")

    def send(self, work: Work) -> None:
        """Let all ranks compute the same step."""
        if self._processes:
            from engine.runner.parallel.step_bytes import encode_work

            self._send(encode_work(work))

    def watched(self, progress: Progress) -> Progress:
        """Progress that breaks loading off when a rank has."""

        def tell(phase: str, percent: float) -> None:
            self._raise_loss()
            progress(phase, percent)

        return tell if self._processes else progress

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What fails because a rank is lost is the error that names the rank."""
        try:
            yield
        except EngineError:
            raise
        except Exception:
            if self._processes:
                self._is_lost.wait(EXPLANATION_S)
                self._raise_loss()
            raise

    def on_fault(self, report: Callable[[EngineError], None]) -> None:
        """Have `report` called, in another thread or at once, when a rank is lost."""
        with self._lock:
            self._report = report
            loss = self._loss
        if loss is not None:
            report(loss)

    def close(self, patience_s: float | None = None) -> None:
        """End all; those that take longer are killed."""
        self._is_closed.set()
        for process in self._processes:
            process.tell_to_stop()
        for process in self._processes:
            process.end() if patience_s is None else process.end(patience_s)
        self._processes.clear()
        if self._store_fd is not None:
            os.close(self._store_fd)
            self._store_fd = None

    def _send(self, data: bytes) -> None:
        for process in self._processes:
            process.send(data)

    def _wait(self, phase: str) -> None:
        for process in self._processes:
            process.wait(phase)

    def _raise_loss(self) -> None:
        if self._loss is not None:
            raise self._loss

    def _lose(self, loss: EngineError) -> None:
        """In the thread of the lost rank, which is the first to know."""
        with self._lock:
            if self._is_closed.is_set() or self._loss is not None:
                return
            self._loss = loss
            report = self._report
        logger.error("%s", loss)
        for process in list(self._processes):
            process.give_up(loss)
        if report is not None:
            report(loss)
        self._is_lost.set()
        if not self._is_closed.wait(LAST_RESORT_S):
            logger.critical("the engine does not end by itself: %s", loss)
            os._exit(2 if isinstance(loss, ConfigError) else 1)
