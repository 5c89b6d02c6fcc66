"""Compiles grammars beside the busy loop: a thread or two, a deadline for each grammar, a bounded cache by content.

Compiling runs in Rust without the interpreter lock, within limits of size and effort; what is too complex becomes the
request's error, never the engine's.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import RequestError
from engine.grammar.cache import GrammarCache, Key
from engine.grammar.sources import to_llguidance
from engine.grammar.state import GrammarState
from engine.grammar.vocabulary import load_vocabulary
from engine.messages import Grammar, SamplingParams

logger = logging.getLogger(__name__)

MAX_COMPILE_S = 30.0  # the limits allow about a second of work, but others may want the processor, too
MAX_THREADS = 2
NICENESS = 5
PROBED_TOKENS = 8
_MAX_ERROR_CHARS = 300
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """The answer to one `GrammarCompiler.submit`: a state, or why there is none."""

    request_id: str
    state: GrammarState | None = None
    error: RequestError | None = None


@dataclass(slots=True)
class _Job:
    request_id: str
    sampling: SamplingParams
    grammar: Grammar
    resumed_token_ids: list[int]
    timer: threading.Timer | None = field(init=False, default=None)


class GrammarCompiler:
    """`submit` from the busy loop's thread; `on_finished` is called in another when `take_finished` has something."""

    def __init__(self, tokenizer_path: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._tokenizer_path = tokenizer_path
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocabulary: LLTokenizer | ValueError | None = None
        self._vocabulary_lock = threading.Lock()
        self._cache = GrammarCache()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._pending: dict[str, _Job] = {}
        self._finished: SimpleQueue[CompiledGrammar] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.max_compile_s = MAX_COMPILE_S
        self.on_finished: Callable[[], None] = lambda: None

    def warm_up(self) -> None:
        """Load the vocabulary in the background, so that the first request doesn't wait for it."""
        self._start_threads()
        self._jobs.put(None)

    def submit(self, request_id: str, sampling: SamplingParams, resumed_token_ids: list[int]) -> GrammarState | None:
        """The request's state if its grammar is known, else None: the state comes with `take_finished` then.

        Raises RequestError for a grammar that is known not to compile.
        """
        grammar = sampling.grammar
        assert grammar is not None
        job = _Job(request_id, sampling, grammar, resumed_token_ids)
        known = self._cache.get(_key(grammar))
        if isinstance(known, str):
            raise _make_error(grammar, known)
        if known is not None and not resumed_token_ids:
            return self._make_state(job, known)
        self._enqueue(job)
        return None

    def discard(self, request_id: str) -> None:
        """The request is gone: its result is not wanted any more."""
        if not self._take_pending(request_id):
            for item in self.take_finished():
                if item.request_id != request_id:
                    self._finished.put(item)

    @property
    def has_finished(self) -> bool:
        """Whether `take_finished` would return something."""
        return not self._finished.empty()

    def take_finished(self) -> list[CompiledGrammar]:
        """What was compiled since the last call."""
        taken: list[CompiledGrammar] = []
        while not self._finished.empty():
            taken.append(self._finished.get())
        return taken

    def _enqueue(self, job: _Job) -> None:
        self._start_threads()
        with self._lock:
            self._pending[job.request_id] = job
        self._jobs.put(job)

    def _start_threads(self) -> None:
        """Daemons: an engine that stops does not wait for a grammar."""
        num_threads = max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
        while len(self._threads) < num_threads:
            thread = threading.Thread(target=self._work, name=f"grammar-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        _lower_priority()
        while True:
            job = self._jobs.get()
            if job is None:
                self._get_vocabulary()
            elif self._start_timer(job):
                self._finish(job, *self._run(job))

    def _start_timer(self, job: _Job) -> bool:
        """False where the request is gone already."""
        timer = threading.Timer(self.max_compile_s, self._expire, [job])
        timer.daemon = True
        with self._lock:
            if self._pending.get(job.request_id) is not job:
                return False
            job.timer = timer
        timer.start()
        return True

    def _run(self, job: _Job) -> tuple[GrammarState | None, RequestError | None]:
        try:
            known = self._compile(job.grammar)
            if isinstance(known, str):
                return None, _make_error(job.grammar, known)
            state = self._make_state(job, known)
            state.accept_all(job.resumed_token_ids)
            if state.error is not None:
                return None, _make_error(job.grammar, "does not allow the tokens that were already produced")
            state.warm_up()
            return state, None
        except BaseException:  # a panic in Rust is no Exception
            # Whatever is wrong with one grammar, the engine and the next grammar must not suffer.
            logger.exception("grammar could not be compiled request_id=%s kind=%s", job.request_id, job.grammar.kind)
            return None, _make_error(job.grammar, "cannot be compiled")

    def _compile(self, grammar: Grammar) -> LLMatcher | str:
        key = _key(grammar)
        known = self._cache.get(key)
        if known is None:
            vocabulary = self._get_vocabulary()
            known = str(vocabulary) if isinstance(vocabulary, ValueError) else compile_grammar(grammar, vocabulary)
            self._cache.put(key, known)
        return known

    def _get_vocabulary(self) -> LLTokenizer | ValueError:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                try:
                    self._vocabulary = load_vocabulary(self._tokenizer_path, self._vocab_size, self._eos_token_ids)
                except ValueError as error:
                    logger.warning("no grammars with this model: structured outputs %s", error)
                    self._vocabulary = error
            return self._vocabulary

    def _make_state(self, job: _Job, matcher: LLMatcher) -> GrammarState:
        eos_token_ids = self._eos_token_ids
        return GrammarState(
            matcher.deep_copy(),
            eos_token_ids=eos_token_ids,
            stop_token_ids=frozenset(job.sampling.stop_token_ids) - eos_token_ids,
            starts_after=job.grammar.starts_after,
            opens_with=job.grammar.opens_with,
            param=job.grammar.param,
        )

    def _expire(self, job: _Job) -> None:
        self._finish(job, None, _make_error(job.grammar, f"takes longer than {self.max_compile_s:g} s to compile"))

    def _finish(self, job: _Job, state: GrammarState | None, error: RequestError | None) -> None:
        if self._take_pending(job.request_id, job):
            self._finished.put(CompiledGrammar(job.request_id, state, error))
            self.on_finished()

    def _take_pending(self, request_id: str, job: _Job | None = None) -> bool:
        """Whether the request was waiting (with this very job); whoever takes it answers it."""
        with self._lock:
            pending = self._pending.get(request_id)
            if pending is None or (job is not None and pending is not job):
                return False
            del self._pending[request_id]
        if pending.timer is not None:
            pending.timer.cancel()
        return True


def compile_grammar(grammar: Grammar, vocabulary: LLTokenizer) -> LLMatcher | str:
    """A matcher at the start of the grammar, its first mask computed; or what is wrong with the grammar, in a line."""
    try:
        source = to_llguidance(grammar)
    except (ValueError, RecursionError) as error:
        return describe_error(str(error))
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=make_limits())
    if matcher.is_error():
        return describe_error(matcher.get_error())
    # A schema that only refers to itself is found out when there is no token to begin with.
    if not any(matcher.compute_bitmask()) or matcher.is_error():
        return "allows no answer"
    problem = _probe(matcher.deep_copy())
    return matcher if problem is None else describe_error(problem)


def _probe(matcher: LLMatcher) -> str | None:
    """Take a few tokens: what is too complex to be followed should show before an answer has begun."""
    for _ in range(PROBED_TOKENS):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error() or matcher.is_stopped():
            break
        # The last id is likely to be a long token, which leads far.
        matcher.consume_token(int(np.flatnonzero(np.unpackbits(mask, bitorder="little"))[-1]))
    return str(matcher.get_error()) if matcher.is_error() else None


def make_limits() -> LLParserLimits:
    """Bounds of effort: about a second to compile, 50 ms for the worst mask, about 100 MB of lexer states."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=200_000,
        max_items_in_row=20_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def describe_error(error: str) -> str:
    """llguidance's error as one line that continues "<field> …"."""
    unimplemented = _UNIMPLEMENTED.search(error)
    if unimplemented:
        words = ", ".join(json.loads(unimplemented[1]))
        return f"uses what is not supported in a JSON schema: {words}"
    line = " ".join(error.replace("<non-verbose/>", "").split())
    return line if _continues(line) else f"cannot be compiled: {line[:_MAX_ERROR_CHARS]}"


def _continues(line: str) -> bool:
    return line.split(" ", 1)[0] in {"has", "is", "must", "uses", "cannot"}


def _make_error(grammar: Grammar, problem: str) -> RequestError:
    return RequestError(f"{grammar.param} {problem}", grammar.param)


def _key(grammar: Grammar) -> Key:
    return grammar.kind, grammar.source, grammar.whitespace


def _lower_priority() -> None:
    """Compiling yields to whoever generates (on Linux a thread has a priority of its own)."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError:
        logger.debug("grammar threads keep the priority of the process")
