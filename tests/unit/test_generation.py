"""A generation over a scripted engine: decoding, stop strings, n choices, aborts, resuming, errors."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import pytest

from appliance.errors import (
    APIError,
    InternalServerError,
    InvalidRequestError,
    PoisonRequestError,
    UnavailableError,
)
from appliance.generation import Generation, GenerationSpec
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart
from appliance.text.output_parser import OutputParser
from appliance.text.reasoning_parsers.base import ReasoningParser
from appliance.text.tool_parsers.base import ToolParser
from engine.client import Listener
from engine.errors import EngineLostError, EngineUnavailableError
from engine.messages import GenerateRequest, RequestOutput, SamplingParams, TokenLogprobs
from tests.unit.text.conftest import make_byte_level

TOKENIZER = make_byte_level()
EOS = 2
Step = RequestOutput | Exception | asyncio.Event
_GENERATION_OPTIONS = ("max_resumes", "engine_wait_s", "waits_to_begin", "make_parser")


class ScriptedEngine:
    """Plays a script for each submit: outputs, exceptions to raise, events to wait for."""

    def __init__(self, script: Callable[[GenerateRequest], Sequence[Step]]) -> None:
        self.script = script
        self.requests: list[GenerateRequest] = []
        self.num_open = 0
        self.is_waiting = asyncio.Semaphore(0)
        self.waits_s: list[float] = []
        self.never_comes_back = False
        self.aborted: list[tuple[str, str]] = []

    async def submit(
        self, request: GenerateRequest, listener: Listener | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        self.requests.append(request)
        self.num_open += 1
        try:
            for step in self.script(request):
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    self.is_waiting.release()
                    await step.wait()
                elif listener is None or not listener(step):
                    yield step
        finally:
            self.num_open -= 1

    async def abort(self, request_ids: Iterable[str], finish_reason: str = "abort") -> None:
        self.aborted += [(request_id, finish_reason) for request_id in request_ids]

    async def wait_ready(self, timeout_s: float) -> None:
        self.waits_s.append(timeout_s)
        if self.never_comes_back:
            raise EngineUnavailableError("nobody there")


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def outputs(
    text: str, *, finish: str = "stop", stop_reason: int | None = None, eos: bool = True
) -> list[RequestOutput]:
    """One output a token, the last with the finish reason (and EOS)."""
    ids = ids_of(text) + ([EOS] if eos else [])
    result = [RequestOutput(request_id="r", token_ids=[id], logprobs=[TokenLogprobs(id, -0.5, 1)]) for id in ids]
    result[0].num_cached_tokens = 3
    result[-1].finish_reason, result[-1].stop_reason = finish, stop_reason
    return result


def make_generation(engine: ScriptedEngine, *, sampling: SamplingParams | None = None, **options: object) -> Generation:
    own = {name: options.pop(name) for name in _GENERATION_OPTIONS if name in options}
    spec = GenerationSpec(
        prompt_token_ids=ids_of("x"),
        sampling=sampling or SamplingParams(max_tokens=100, seed=7),
        request_id="r",
        **options,  # type: ignore[arg-type]
    )
    return Generation(engine, TOKENIZER, spec, **own)  # type: ignore[arg-type]


async def collect(generation: Generation) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = defaultdict(list)
    async with generation:
        async for index, batch in generation:
            events[index] += batch
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def counted_ids(events: list[Event]) -> list[int]:
    return [id for event in events if isinstance(event, Content | Reasoning) for id in event.token_ids]


async def test_text_streams_and_the_eos_is_counted_but_not_shown() -> None:
    engine = ScriptedEngine(lambda _: outputs("Hello 你好 world"))
    generation = make_generation(engine)
    events = (await collect(generation))[0]
    assert text_of(events) == "Hello 你好 world"
    assert events[-1] == Finish("stop", None)
    assert [type(e) for e in events].count(Finish) == 1
    assert not any("\ufffd" in e.text for e in events if isinstance(e, Content))
    assert generation.output_token_ids[0] == counted_ids(events) == [*ids_of("Hello 你好 world"), EOS]
    assert generation.num_output_tokens == [len(ids_of("Hello 你好 world")) + 1]
    assert generation.num_cached_tokens == 3
    assert generation.num_prompt_tokens == len(ids_of("x"))
    assert engine.num_open == 0


async def test_logprobs_go_with_the_tokens() -> None:
    events = (await collect(make_generation(ScriptedEngine(lambda _: outputs("Hello 你好")))))[0]
    for event in events[:-1]:
        assert isinstance(event, Content)
        assert [entry.token_id for entry in event.logprobs or []] == event.token_ids


async def test_a_stop_string_over_tokens_cuts_aborts_and_ends_the_count() -> None:
    engine = ScriptedEngine(lambda _: outputs(" red red red red blue red", finish="length", eos=False))
    generation = make_generation(engine, stop=["red red red", "blue"])
    events = (await collect(generation))[0]
    assert text_of(events) == " "
    assert events[-1] == Finish("stop", "red red red")
    assert generation.output_token_ids[0] == counted_ids(events) == ids_of(" red red red")
    assert engine.num_open == 0
    assert engine.aborted == [(engine.requests[0].request_id, "stop")]
    (progress,) = generation.progress
    assert progress.finish_reason == "stop"
    assert progress.first_token_s is not None
    assert progress.last_token_s is not None
    assert progress.first_token_s <= progress.last_token_s


async def test_a_stop_string_wins_over_length_and_eos_in_one_output() -> None:
    whole = RequestOutput(request_id="r", token_ids=[*ids_of("one red two"), EOS], finish_reason="stop")
    generation = make_generation(ScriptedEngine(lambda _: [whole]), stop=["red"], include_stop_str_in_output=True)
    events = (await collect(generation))[0]
    assert text_of(events) == "one red"
    assert events[-1] == Finish("stop", "red")
    assert TOKENIZER.decode(generation.output_token_ids[0]) == "one red"


async def test_stop_strings_wait_for_min_tokens() -> None:
    sampling = SamplingParams(max_tokens=100, seed=7, min_tokens=2)
    engine = ScriptedEngine(lambda _: outputs(" red red red blue"))
    generation = make_generation(engine, sampling=sampling, stop=["red"])
    events = (await collect(generation))[0]
    assert text_of(events) == " red red "
    assert generation.num_output_tokens == [3]


async def test_what_was_held_back_comes_out_at_the_end() -> None:
    engine = ScriptedEngine(lambda _: outputs(" red red", finish="length", eos=False))
    events = (await collect(make_generation(engine, stop=["red blue"])))[0]
    assert text_of(events) == " red red"
    assert events[-1] == Finish("length", None)


async def test_stop_token_text_is_shown_only_with_the_include_flag() -> None:
    stop_id = ids_of(" blue")[0]
    script = outputs("Hello", eos=False)
    script[-1].finish_reason = None
    script.append(RequestOutput(request_id="r", token_ids=[stop_id], finish_reason="stop", stop_reason=stop_id))
    hidden = (await collect(make_generation(ScriptedEngine(lambda _: script))))[0]
    shown = (await collect(make_generation(ScriptedEngine(lambda _: script), include_stop_str_in_output=True)))[0]
    assert text_of(hidden) == "Hello"
    assert text_of(shown) == "Hello" + TOKENIZER.decode([stop_id])
    assert hidden[-1] == shown[-1] == Finish("stop", stop_id)


async def test_an_unfinished_character_at_the_end_is_left_out() -> None:
    script = [RequestOutput(request_id="r", token_ids=ids_of("a🦊")[:-1], finish_reason="length")]
    assert text_of((await collect(make_generation(ScriptedEngine(lambda _: script))))[0]) == "a"


async def test_n_choices_have_their_own_seeds_and_interleave() -> None:
    engine = ScriptedEngine(lambda request: outputs(f"Hello {request.sampling.seed}"))
    sampling = SamplingParams(max_tokens=100, seed=2**63 - 2, prompt_logprobs=1)
    generation = make_generation(engine, n=3, sampling=sampling)
    order = []
    texts: dict[int, str] = defaultdict(str)
    async with generation:
        async for index, events in generation:
            order.append(index)
            texts[index] += text_of(events)
    seeds = [2**63 - 2, 2**63 - 1, -(2**63)]
    assert [texts[i] for i in range(3)] == [f"Hello {seed}" for seed in seeds]
    assert [request.sampling.prompt_logprobs for request in engine.requests] == [1, None, None]
    assert len({request.request_id for request in engine.requests}) == 3
    assert order != sorted(order)
    assert engine.num_open == 0


async def test_leaving_early_aborts_every_choice_and_leaves_no_task() -> None:
    for n in (1, 3):
        engine = ScriptedEngine(lambda _: [RequestOutput(request_id="r", token_ids=ids_of("Hello")), asyncio.Event()])
        before = asyncio.all_tasks()
        async with make_generation(engine, n=n) as generation:
            await anext(aiter(generation))
            assert engine.num_open == n
        assert engine.num_open == 0
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("n", [1, 2])
async def test_cancelling_the_reader_aborts(n: int) -> None:
    engine = ScriptedEngine(lambda _: [RequestOutput(request_id="r", token_ids=ids_of("Hello")), asyncio.Event()])
    task = asyncio.create_task(collect(make_generation(engine, n=n)))
    for _ in range(n):
        await engine.is_waiting.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.num_open == 0


async def test_a_lost_engine_is_a_pause_and_nothing_is_said_twice() -> None:
    whole = outputs("Hello 🦊🦊 red red blue")

    def script(request: GenerateRequest) -> list[Step]:
        begin = len(request.resumed_token_ids)
        lost: list[Step] = [EngineLostError("gone")] if begin < 6 else []
        return [*whole[begin : begin + 3 if lost else None], *lost]

    engine = ScriptedEngine(script)
    generation = make_generation(engine, stop=["red blue"])
    events = (await collect(generation))[0]
    assert text_of(events) == "Hello 🦊🦊 red "
    assert events[-1] == Finish("stop", "red blue")
    ids = [output.token_ids[0] for output in whole]
    assert [request.resumed_token_ids for request in engine.requests] == [[], ids[:3], ids[:6]]
    assert {request.sampling.seed for request in engine.requests} == {7}
    assert counted_ids(events) == generation.output_token_ids[0] == ids[: len(ids) - 1]


async def test_resuming_has_a_limit() -> None:
    engine = ScriptedEngine(lambda _: [EngineLostError("gone")])
    with pytest.raises(InternalServerError):
        await collect(make_generation(engine, max_resumes=2))
    assert len(engine.requests) == 3


async def test_waiting_for_a_lost_engine_has_a_limit() -> None:
    engine = ScriptedEngine(lambda _: [EngineLostError("gone")])
    engine.never_comes_back = True
    with pytest.raises(UnavailableError, match=r"within 7 s") as caught:
        await collect(make_generation(engine, engine_wait_s=7.0))
    assert caught.value.retry_after_s
    (wait_s,) = engine.waits_s
    assert wait_s == pytest.approx(7.0)


async def test_a_new_request_waits_for_an_engine_that_restarts() -> None:
    attempts = iter([[EngineUnavailableError("nobody there")], [EngineUnavailableError("loading")]])
    engine = ScriptedEngine(lambda _: next(attempts, outputs("Hello")))
    generation = make_generation(engine, waits_to_begin=True, max_resumes=0)
    assert text_of((await collect(generation))[0]) == "Hello"
    assert generation.progress[0].num_resumes == 0
    first, second = engine.waits_s
    assert second < first  # one wait, however often it is refused meanwhile


async def test_only_a_loss_of_what_had_begun_counts_as_a_resume() -> None:
    answer = outputs("Hello")
    attempts = iter([[answer[0], EngineLostError("gone")], [EngineUnavailableError("gone again")]])
    engine = ScriptedEngine(lambda _: next(attempts, answer[1:]))
    generation = make_generation(engine, max_resumes=1)
    assert text_of((await collect(generation))[0]) == "Hello"
    assert generation.progress[0].num_resumes == 1


async def test_a_poison_request_is_told_so() -> None:
    refusal = RequestOutput(request_id="r", finish_reason="error", error="it kills engines", is_poison=True)
    with pytest.raises(PoisonRequestError, match="it kills engines") as caught:
        await collect(make_generation(ScriptedEngine(lambda _: [refusal])))
    assert (caught.value.status, caught.value.code) == (500, "poison_request")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("step", "kind", "param"),
    [
        (EngineUnavailableError("loading"), UnavailableError, None),
        (
            RequestOutput(request_id="r", finish_reason="error", error="bad id", error_param="prompt"),
            InvalidRequestError,
            "prompt",
        ),
        (RequestOutput(request_id="r", finish_reason="error", error="CUDA error"), InternalServerError, None),
        (RequestOutput(request_id="r", finish_reason="error", unavailable=True), UnavailableError, None),
    ],
)
async def test_errors_become_api_errors(n: int, step: Step, kind: type[APIError], param: str | None) -> None:
    engine = ScriptedEngine(lambda _: [step])
    with pytest.raises(kind) as caught:
        await collect(make_generation(engine, n=n))
    assert caught.value.param == param
    assert "CUDA" not in caught.value.message
    assert engine.num_open == 0


async def test_an_engine_side_abort_ends_the_choice() -> None:
    events = (await collect(make_generation(ScriptedEngine(lambda _: outputs("Hello", finish="abort", eos=False)))))[0]
    assert events[-1] == Finish("abort", None)


class UpperCaseThinks(ReasoningParser):
    def feed(self, text: str) -> list[Event]:
        return [Reasoning(text)] if text.isupper() else [Content(text)]

    def finish(self) -> list[Event]:
        return []


class TagCalls(ToolParser):
    markers = ("<|im_start|>",)

    def feed(self, text: str) -> list[Event]:
        if text == "<|im_start|>":
            return [ToolCallStart(0, self.make_call_id("f", 0), "f"), ToolCallArguments(0, "{}")]
        return [Content(text)]

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        return [Content("!")]


async def test_parsers_see_their_markers_and_calls_change_the_finish_reason() -> None:
    engine = ScriptedEngine(lambda _: outputs("X<|im_start|>red"))
    generation = make_generation(engine, make_parser=lambda: OutputParser(UpperCaseThinks(), TagCalls()))
    events = (await collect(generation))[0]
    assert [type(event) for event in events] == [
        Reasoning, ToolCallStart, ToolCallArguments, *[Content] * len(ids_of("red")), Content, Finish
    ]  # fmt: skip
    assert events[-1] == Finish("tool_calls", None)
    assert text_of(events) == "red!"
    assert counted_ids(events) == generation.output_token_ids[0]


class Hearer:
    """An `EventListener` that keeps what it gets; ready for the first ``num_wanted`` outputs."""

    def __init__(self, num_wanted: int = 1000) -> None:
        self.events: list[Event] = []
        self.errors: list[Exception] = []
        self._num_wanted = num_wanted

    def is_ready(self) -> bool:
        self._num_wanted -= 1
        return self._num_wanted >= 0

    def take(self, index: int, events: list[Event]) -> None:
        assert index == 0
        self.events += events

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("num_wanted", [0, 1, 3, 1000])
async def test_a_listener_gets_what_it_is_ready_for_and_the_iterator_the_rest(num_wanted: int) -> None:
    listener = Hearer(num_wanted)
    generation = make_generation(ScriptedEngine(lambda _: outputs("Hello 你好 world")))
    generation.hand_to(listener)
    iterated = (await collect(generation))[0]
    assert text_of(listener.events + iterated) == "Hello 你好 world"
    assert counted_ids(listener.events + iterated) == generation.output_token_ids[0]
    assert iterated[-1] == Finish("stop", None)
    assert bool(listener.events) is (num_wanted > 0)
    assert not any(isinstance(event, Finish) for event in listener.events)


async def test_a_stop_string_is_the_iterators_where_there_is_a_listener() -> None:
    listener = Hearer()
    engine = ScriptedEngine(lambda _: outputs(" red red blue red", finish="length", eos=False))
    generation = make_generation(engine, stop=["blue"])
    generation.hand_to(listener)
    iterated = (await collect(generation))[0]
    assert text_of(listener.events) == " red red"
    assert iterated[-1] == Finish("stop", "blue")
    assert text_of(listener.events + iterated) == " red red "
    assert engine.aborted == [("r-0", "stop")]


async def test_a_listener_hears_of_the_error_that_it_made() -> None:
    class Clumsy(Hearer):
        def take(self, index: int, events: list[Event]) -> None:
            raise InternalServerError("cannot print")

    listener = Clumsy()
    generation = make_generation(ScriptedEngine(lambda _: outputs("Hello")))
    generation.hand_to(listener)
    await collect(generation)
    assert [str(error) for error in listener.errors] == ["cannot print"]


async def test_a_token_costs_little() -> None:
    num_tokens = 5000
    id = ids_of(" red")[0]
    steps = [RequestOutput(request_id="r", token_ids=[id]) for _ in range(num_tokens)]
    steps.append(RequestOutput(request_id="r", token_ids=[EOS], finish_reason="stop"))

    class Fast(ScriptedEngine):
        async def submit(
            self, request: GenerateRequest, listener: Listener | None = None
        ) -> AsyncGenerator[RequestOutput, None]:
            for step in steps:
                yield step

    start = time.process_time()
    await collect(make_generation(Fast(lambda _: []), stop=["red blue", "END"]))
    assert (time.process_time() - start) / num_tokens < 400e-6  # ten times the goal: a busy machine must not fail it
