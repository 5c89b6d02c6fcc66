"""Every struct that crosses the engine's socket: msgpack-encoded tagged unions, token ids only. No torch.

Worker → engine: `EngineRequest`; engine → worker: `EngineReply`. One message is one frame (`engine.frames`). Lists of
token ids are plain lists of ints; log-probabilities are natural logarithms of the raw distribution (before
temperature, penalties, bias and masks).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an output must look like; the engine compiles it. Ends the request as soon as nothing may follow.

    ``kind`` says what ``source`` is: ``json_schema`` (a schema's JSON), ``regex`` (matches the whole output),
    ``choice`` (a JSON list of strings), ``lark``, ``ebnf`` (GBNF-like, rule ``root``), ``structural_tag`` (JSON, see
    `engine.grammar.structural_tags`).
    """

    kind: str
    source: str
    param: str = "structured_outputs"  # the caller's field, which errors name
    whitespace: str | None = None  # regex of white space between JSON's tokens; None = at most 16, "" = none
    starts_after: list[int] = []  # free until these tokens were produced: the end of the model's thinking
    opens_with: int | None = None  # the thinking has not begun: only this as the first token begins it


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to pick tokens and when to stop. Ranges are checked by the API; the engine trusts them.

    ``seed`` is always set (the API draws one where the caller gave none), because the noise of output position ``k``
    is a function of ``(seed, k, token id)`` and a request must be able to go on after the engine was lost.
    """

    max_tokens: int  # ≥ 1; counts every output token, resumed ones included
    seed: int  # signed 64 bit
    min_tokens: int = 0  # until then EOS and stop_token_ids are masked
    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] | None = None  # each: a banned run of tokens
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None  # None off, 0 sampled token only, k top-k too, -1 whole vocabulary
    prompt_logprobs: int | None = None  # same scale, for each prompt token but the first
    logprob_token_ids: list[int] | None = None  # these ids' logprobs as well
    grammar: Grammar | None = None  # wins over bias, bans, allowed ids and min_tokens where they leave nothing else


class RequestGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one caller's call, which are taken or refused together. Each member says how many they are."""

    group_id: str  # unique among the groups in flight
    num_requests: int
    num_tokens: int  # of their prompts together


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """Generate for one prompt. ``n > 1`` is n of these with seed, seed+1, …

    ``resumed_token_ids`` are output tokens that were already produced (and delivered) before: the engine treats the
    request as it treats a preempted one and goes on at output position ``len(resumed_token_ids)``.
    """

    request_id: str  # unique among the requests in flight
    prompt_token_ids: list[int]
    sampling: SamplingParams
    resumed_token_ids: list[int] = []
    arrival_time: float = 0.0  # seconds, monotonic; orders equal priorities and starts TTFT
    priority: int = 0  # lower first, under --scheduling-policy priority
    cache_salt: str | None = None  # isolates the prefix cache
    tenant: str = ""  # whose it is: waiting tenants are served in turn, under --scheduling-policy fcfs
    group: RequestGroup | None = None
    was_admitted: bool = False  # by an earlier engine, which was lost: a full queue does not refuse it
    origin_id: str = ""  # the same each time that the request is submitted again; "" = request_id


class AbortRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="abort"):
    """Drop these requests; unknown ids are ignored. Blocks are free within one step. No reply.

    ``finish_reason`` is how they are counted: "stop" where a stop string was found, which only the text shows.
    """

    request_ids: list[str]
    finish_reason: Literal["abort", "stop"] = "abort"


class InfoRequest(msgspec.Struct, frozen=True, tag="info"):
    """Ask for `EngineInfo`; answered while the model is still loading, too."""

    call_id: int


class MetricsRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="metrics"):
    """Ask for the engine's metrics in Prometheus text exposition, or in the one of OpenMetrics."""

    call_id: int
    openmetrics: bool = False


class ResetPrefixCacheRequest(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget all cached blocks; refused while blocks are in use."""

    call_id: int


EngineRequest = GenerateRequest | AbortRequest | InfoRequest | MetricsRequest | ResetPrefixCacheRequest


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Raw log-probability of one chosen token, its rank (1 = most likely), and the likeliest others, best first."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]] = []  # (token id, logprob); holds exactly the k asked for


class RequestOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one or more steps produced for one request. Mergeable: see `merge_outputs`.

    ``finish_reason`` is None until the last output: "stop", "length", "abort" or "error". ``stop_reason`` is the stop
    token id that ended it, None for EOS. The stopping token is in ``token_ids``; where a grammar was completed there is
    none, which ``ends_in_text`` tells.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None  # parallel to token_ids, if asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # whole list, once, first entry None
    num_cached_tokens: int | None = None  # prompt tokens found in the prefix cache; on the first output only
    finish_reason: str | None = None
    stop_reason: int | None = None
    ends_in_text: bool = False  # with "stop": the last token belongs to the text
    error: str | None = None  # with finish_reason "error": one line for the caller
    error_param: str | None = None  # the request's field that is wrong (a 400), None for an engine fault (a 500)
    unavailable: bool = False  # with "error": not begun, the engine is loading or stopping (a 503)
    is_poison: bool = False  # with "error": it made engines fail and must not be tried again (a 500)
    queue_limit: str | None = None  # with "error": not begun, as many wait as this limit of the queue says (a 503)


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """One step's outputs for one worker (several steps' where the worker reads slowly)."""

    outputs: list[RequestOutput]


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag="info"):
    """State and facts of an engine process. Facts about the model are 0 / empty until ``is_ready``."""

    call_id: int
    engine_id: str  # new for each engine process: a change means the engine restarted
    pid: int
    phase: str  # "starting", "loading weights", …, "warming up", "ready"; "failed", "not responding"
    percent: float  # 0 … 100 of the whole start
    is_ready: bool
    phase_seconds: dict[str, float]  # finished phases, in order
    error: str | None = None  # with phase "failed": why
    max_model_len: int = 0
    vocab_size: int = 0
    block_size: int = 0
    num_gpu_blocks: int = 0
    dtype: str = ""
    device: str = ""
    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0  # 0 … 1


class MetricsReply(msgspec.Struct, frozen=True, tag="metrics"):
    """Prometheus text exposition of everything the engine counts."""

    call_id: int
    text: str


class ResetPrefixCacheReply(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Whether the cache was emptied (False while blocks are in use)."""

    call_id: int
    success: bool


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A worker's first message; then about once a second, and when the engine begins or ends to take requests.

    Tells that the engine lives. A worker that has yet to read other messages is spared it.
    """

    engine_id: str
    is_ready: bool = False


EngineReply = Outputs | EngineInfo | MetricsReply | ResetPrefixCacheReply | Ping

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(EngineRequest).decode
decode_reply = msgspec.msgpack.Decoder(EngineReply).decode


_REPLACED = (
    *("prompt_logprobs", "num_cached_tokens", "finish_reason", "stop_reason"),
    *("error", "error_param", "queue_limit"),
)


def merge_outputs(older: RequestOutput, newer: RequestOutput) -> None:
    """Append `newer` to `older` in place: what a slow reader gets instead of a growing queue."""
    older.token_ids = older.token_ids + newer.token_ids
    if newer.logprobs is not None:
        older.logprobs = (older.logprobs or []) + newer.logprobs
    for name in _REPLACED:
        if getattr(newer, name) is not None:
            setattr(older, name, getattr(newer, name))
    older.unavailable = older.unavailable or newer.unavailable
    older.is_poison = older.is_poison or newer.is_poison
    older.ends_in_text = older.ends_in_text or newer.ends_in_text
