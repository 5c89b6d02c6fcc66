"""Messages: what goes in comes out, garbage is told apart, outputs merge to what they would have been in one."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import (
    AbortRequest,
    EngineInfo,
    EngineReply,
    EngineRequest,
    GenerateRequest,
    InfoRequest,
    MetricsReply,
    MetricsRequest,
    Outputs,
    Ping,
    RequestOutput,
    ResetPrefixCacheReply,
    ResetPrefixCacheRequest,
    SamplingParams,
    TokenLogprobs,
    decode_reply,
    decode_request,
    encode,
    merge_outputs,
)

FULL_SAMPLING = SamplingParams(
    max_tokens=5,
    seed=-(2**63),
    temperature=0.5,
    logit_bias={3: -100.0, 7: 1.5},
    allowed_token_ids=[1, 2],
    bad_words_token_ids=[[1, 2], [3]],
    stop_token_ids=[2],
    logprobs=-1,
    prompt_logprobs=0,
)
REQUESTS: list[EngineRequest] = [
    GenerateRequest(request_id="a", prompt_token_ids=[1, 2**17], sampling=SamplingParams(max_tokens=1, seed=0)),
    GenerateRequest(
        request_id="b",
        prompt_token_ids=[1],
        sampling=FULL_SAMPLING,
        resumed_token_ids=[4, 5],
        arrival_time=1.5,
        priority=-3,
        cache_salt="salt",
    ),
    AbortRequest(["a", "b"]),
    InfoRequest(1),
    MetricsRequest(2),
    ResetPrefixCacheRequest(3),
]
REPLIES: list[EngineReply] = [
    Outputs(
        [
            RequestOutput(
                request_id="a",
                token_ids=[1, 2],
                logprobs=[TokenLogprobs(1, -0.5, 1, [(1, -0.5), (9, float("-inf"))]), TokenLogprobs(2, -1.0, 2)],
                prompt_logprobs=[None, TokenLogprobs(3, -2.0, 5)],
                num_cached_tokens=0,
                finish_reason="stop",
                stop_reason=2,
            ),
            RequestOutput(request_id="b", finish_reason="error", error="no", unavailable=True),
        ]
    ),
    EngineInfo(call_id=1, engine_id="e", pid=1, phase="ready", percent=100.0, is_ready=True, phase_seconds={"a": 0.5}),
    MetricsReply(2, "# HELP"),
    ResetPrefixCacheReply(3, True),
    Ping("e"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda message: type(message).__name__)
def test_requests_survive_the_socket(request_: EngineRequest) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda message: type(message).__name__)
def test_replies_survive_the_socket(reply: EngineReply) -> None:
    assert decode_reply(encode(reply)) == reply


def test_a_token_costs_few_bytes() -> None:
    assert len(encode(Outputs([RequestOutput(request_id="r" * 20, token_ids=[1000])]))) < 80


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_the_errors_that_are_caught(data: bytes) -> None:
    with contextlib.suppress(ValueError, msgspec.MsgspecError, RecursionError):
        decode_request(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "unknown"}),
        msgspec.msgpack.encode({"type": "generate", "request_id": "a"}),
        msgspec.msgpack.encode({"type": "info", "call_id": "one"}),
        msgspec.msgpack.encode({"type": "abort", "request_ids": [b"\xff"]}),
        b"\x81\xa4type\xa5\xff\xff\xff\xff\xff",
        b"\x91" * 100_000,
    ],
)
def test_malformed_requests_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError, RecursionError)):
        decode_request(data)


def _parts() -> list[RequestOutput]:
    return [
        RequestOutput(request_id="a", token_ids=[1], num_cached_tokens=4, prompt_logprobs=[None]),
        RequestOutput(request_id="a", token_ids=[2, 3]),
        RequestOutput(request_id="a", token_ids=[4], finish_reason="stop", stop_reason=4),
    ]


@pytest.mark.parametrize("left_first", [True, False])
def test_merging_gives_the_output_of_one_step(left_first: bool) -> None:
    first, second, third = _parts()
    if left_first:
        merge_outputs(first, second)
        merge_outputs(first, third)
    else:
        merge_outputs(second, third)
        merge_outputs(first, second)
    assert first == RequestOutput(
        request_id="a",
        token_ids=[1, 2, 3, 4],
        num_cached_tokens=4,
        prompt_logprobs=[None],
        finish_reason="stop",
        stop_reason=4,
    )


def test_merging_keeps_logprobs_parallel_to_tokens() -> None:
    entries = [TokenLogprobs(token, -1.0, 1) for token in (1, 2)]
    older = RequestOutput(request_id="a", token_ids=[1], logprobs=[entries[0]])
    merge_outputs(older, RequestOutput(request_id="a", token_ids=[2], logprobs=[entries[1]]))
    assert older.token_ids == [1, 2]
    assert older.logprobs == entries


def test_merging_leaves_lists_of_others_alone() -> None:
    tokens = [1]
    older = RequestOutput(request_id="a", token_ids=tokens)
    merge_outputs(older, RequestOutput(request_id="a", token_ids=[2]))
    assert tokens == [1]


def test_merging_an_error_keeps_what_was_produced() -> None:
    older = RequestOutput(request_id="a", token_ids=[1])
    error = RequestOutput(request_id="a", finish_reason="error", error="broken", error_param="seed", unavailable=True)
    merge_outputs(older, error)
    assert older == RequestOutput(
        request_id="a",
        token_ids=[1],
        finish_reason="error",
        error="broken",
        error_param="seed",
        unavailable=True,
    )
