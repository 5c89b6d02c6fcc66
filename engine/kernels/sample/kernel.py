"""Sampling on a GPU: logits stay where they are, token ids come out.

A draw is the largest of logit / temperature + noise (`engine.sampling.noise`: a hash of seed, position and token, the
same bits in every implementation), so a vocabulary is cut into chunks, each chunk's program finds its best token, and
a last program picks the best chunk: two launches for a batch. top_k, top_p and min_p come down to one number a row,
the smallest logit that stays, and a last id for those that equal it. It is found by bisection over the bits of floats:
on the candidates near the likeliest token, copied out in a first pass, where they settle the matter (they do unless a
distribution is very flat), else on the whole row. No sort, and no number of kept tokens that the host had to know.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sample.rows import Drafts, DrawRows, SeenTokens

CHUNK = 4096
CANDIDATES = 4096  # of a row that are copied out
NEAR = 12.0  # nats from the likeliest token that candidates may be away


def draw_tokens(logits: Tensor, rows: DrawRows) -> Tensor:
    """A token of each row of processed logits[R, V] (float32), int64 [R]; see the reference."""
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return tokens
    bounds = last_ids = None
    if rows.truncates:
        bounds, last_ids = _truncate(logits, rows)
    chunks = triton.cdiv(vocab_size, CHUNK)
    best_scores = torch.empty(num_rows, chunks, dtype=torch.float64, device=logits.device)
    best_ids = torch.empty(num_rows, chunks, dtype=torch.int32, device=logits.device)
    _draw_kernel[(num_rows, chunks)](
        logits,
        rows.temperature,
        rows.keys,
        bounds,
        last_ids,
        best_scores,
        best_ids,
        vocab_size,
        logits.stride(0),
        CHUNK=CHUNK,
        num_warps=8,
        enable_fp_fusion=True,
    )
    _pick_kernel[(num_rows,)](
        best_scores,
        best_ids,
        tokens,
        chunks,
        BLOCK=triton.next_power_of_2(chunks),
        num_warps=1,
        enable_fp_fusion=True,
    )
    return tokens


def _truncate(logits: Tensor, rows: DrawRows) -> tuple[Tensor, Tensor]:
    """For each row the smallest scaled logit that stays, and the last id that stays of those that equal it."""
    num_rows, vocab_size = logits.shape
    bounds = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    last_ids = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    scratch = torch.empty(num_rows, CANDIDATES, dtype=torch.float32, device=logits.device)
    _truncate_kernel[(num_rows,)](
        logits,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.log_min_p,
        scratch,
        bounds,
        last_ids,
        vocab_size,
        logits.stride(0),
        NEAR=NEAR,
        CANDIDATES=CANDIDATES,
        BLOCK=min(CHUNK // 2, triton.next_power_of_2(vocab_size)),
        num_warps=16,
        enable_fp_fusion=True,
    )
    return bounds, last_ids


def apply_penalties_(logits: Tensor, seen: SeenTokens) -> None:
    """On logits[R, V] (float32) in place; see the reference. Without fused multiply-add, to round as it does."""
    if logits.shape[0]:
        _penalties_kernel[(logits.shape[0],)](
            logits,
            seen.starts,
            seen.ids,
            seen.counts,
            seen.repetition,
            seen.frequency,
            seen.presence,
            logits.stride(0),
            BLOCK=1024,
            num_warps=4,
            enable_fp_fusion=False,
        )


def verify_greedy(targets: Tensor, drafts: Drafts) -> tuple[Tensor, Tensor]:
    """How many tokens each row yields, int32 [R], and which, int64 [R, longest + 1]; see the reference."""
    num_rows, width = drafts.starts.shape[0] - 1, drafts.longest + 1
    counts = torch.empty(num_rows, dtype=torch.int32, device=targets.device)
    tokens = torch.empty(num_rows, width, dtype=torch.int64, device=targets.device)
    if num_rows:
        _verify_kernel[(num_rows,)](
            targets,
            drafts.starts,
            drafts.ids,
            counts,
            tokens,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            num_warps=1,
            enable_fp_fusion=True,
        )
    return counts, tokens


@triton.jit
def _mix(h):
    """murmur3's finaliser on uint32, modulo 2**32."""
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _gumbel(token, key, key2):
    """Noise of tokens (int32) as float64."""
    hashed = _mix(_mix(token.to(tl.uint32) * 0x9E3779B9 + key) ^ key2)
    uniform = ((hashed >> 8).to(tl.float64) + 0.5) * 5.9604644775390625e-08
    return -tl.log(-tl.log(uniform))


@triton.jit
def _scaled(logits, temperature):
    """logits / temperature, rounded as IEEE division is; NaN counts as the largest value."""
    logits = tl.where(logits != logits, float("inf"), logits)
    return tl.div_rn(logits, tl.zeros_like(logits) + temperature)


# Parameters of rows lie packed behind each other: how their arrays are aligned says nothing and changes with the batch.
@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "keys_ptr"])
def _draw_kernel(
    logits_ptr,
    temperature_ptr,
    keys_ptr,
    bounds_ptr,
    last_ids_ptr,
    best_scores_ptr,
    best_ids_ptr,
    vocab_size,
    stride,
    CHUNK: tl.constexpr,
):
    """The best token of one chunk of one row, the lowest id among equals."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab_size
    logits = tl.load(logits_ptr + row * stride + token, mask=inside, other=-float("inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    is_drawn = temperature > 0
    scaled = _scaled(logits, tl.where(is_drawn, temperature, 1.0))
    scores = scaled.to(tl.float64)
    if is_drawn:
        key = tl.load(keys_ptr + row * 2).to(tl.uint32)
        key2 = tl.load(keys_ptr + row * 2 + 1).to(tl.uint32)
        scores += _gumbel(token, key, key2)
        if bounds_ptr is not None:
            bound, last_id = tl.load(bounds_ptr + row), tl.load(last_ids_ptr + row)
            is_kept = (scaled > bound) | ((scaled == bound) & (token <= last_id))
            scores = tl.where(is_kept, scores, -float("inf"))
    best = tl.max(scores, axis=0)
    place = row * tl.num_programs(1) + chunk
    tl.store(best_scores_ptr + place, best)
    tl.store(best_ids_ptr + place, tl.min(tl.where(scores == best, token, 2147483647), axis=0))


@triton.jit
def _pick_kernel(best_scores_ptr, best_ids_ptr, tokens_ptr, chunks, BLOCK: tl.constexpr):
    """The best chunk of one row, the first among equals."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, BLOCK)
    inside = chunk < chunks
    scores = tl.load(best_scores_ptr + row * chunks + chunk, mask=inside, other=-float("inf"))
    ids = tl.load(best_ids_ptr + row * chunks + chunk, mask=inside, other=2147483647)
    best = tl.max(scores, axis=0)
    tl.store(tokens_ptr + row, tl.min(tl.where(scores == best, ids, 2147483647), axis=0).to(tl.int64))


@triton.jit
def _order(values):
    """float32 as int32 that compares alike."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _value(order):
    """The float32 of an order (int64)."""
    narrow = order.to(tl.int32)
    return tl.where(narrow >= 0, narrow, narrow ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _tally(source_ptr, size, temperature, top, bound, BLOCK: tl.constexpr):
    """Of values whose order is at least `bound`: how many, and their weight e^(value - top)."""
    count = 0
    weight = 0.0
    for start in range(0, size, BLOCK):
        index = start + tl.arange(0, BLOCK)
        values = tl.load(source_ptr + index, mask=index < size, other=-float("inf")).to(tl.float32)
        scaled = _scaled(values, temperature)
        is_in = (_order(scaled) >= bound) & (index < size)
        count += tl.sum(is_in.to(tl.int32), axis=0)
        weight += tl.sum(tl.where(is_in, tl.exp(scaled - top), 0.0), axis=0)
    return count, weight


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "top_k_ptr", "top_p_ptr", "log_min_p_ptr"])
def _truncate_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    log_min_p_ptr,
    scratch_ptr,
    bounds_ptr,
    last_ids_ptr,
    vocab_size,
    stride,
    NEAR: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row's bound: min_p, then top_k, then top_p of what those leave."""
    row = tl.program_id(0).to(tl.int64)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    log_min_p, temperature = tl.load(log_min_p_ptr + row), tl.load(temperature_ptr + row)
    bound = -float("inf")
    last_id = vocab_size
    if (temperature > 0) & ((top_k > 0) | (top_p < 1.0) | (log_min_p > -float("inf"))):
        row_ptr = logits_ptr + row * stride
        peaks = tl.full([BLOCK], -float("inf"), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            index = start + tl.arange(0, BLOCK)
            values = tl.load(row_ptr + index, mask=index < vocab_size, other=-float("inf")).to(tl.float32)
            peaks = tl.maximum(peaks, _scaled(values, temperature))
        top = tl.max(peaks, axis=0)
        floor = top + log_min_p

        # Copy out what lies near the top, in order; see whether it can settle the matter.
        near = tl.maximum(floor, top - NEAR)
        num_near = 0
        total = 0.0
        near_total = 0.0
        for start in range(0, vocab_size, BLOCK):
            index = start + tl.arange(0, BLOCK)
            values = tl.load(row_ptr + index, mask=index < vocab_size, other=-float("inf")).to(tl.float32)
            scaled = _scaled(values, temperature)
            weights = tl.exp(scaled - top)
            total += tl.sum(tl.where(scaled >= floor, weights, 0.0), axis=0)
            is_near = (scaled >= near) & (index < vocab_size)
            near_total += tl.sum(tl.where(is_near, weights, 0.0), axis=0)
            place = num_near + tl.cumsum(is_near.to(tl.int32), axis=0) - 1
            tl.store(scratch_ptr + row * CANDIDATES + place, values, mask=is_near & (place < CANDIDATES))
            num_near += tl.sum(is_near.to(tl.int32), axis=0)
        tl.debug_barrier()  # the copies are read by other threads of the program than wrote them
        holds_k = tl.where(top_k > 0, num_near >= top_k, near_total >= top_p * total) | (near == floor)
        is_settled = (num_near <= CANDIDATES) & holds_k
        source_ptr, size = row_ptr, vocab_size
        if is_settled:
            source_ptr, size = scratch_ptr + row * CANDIDATES, num_near

        # Orders are compared as 64-bit integers, whose differences cannot overflow.
        high = _order(top).to(tl.int64)
        lowest = _order(floor).to(tl.int64)
        num_left, _weight = _tally(source_ptr, size, temperature, top, lowest, BLOCK)
        ties = vocab_size  # how many of those that equal the bound stay
        if (top_k > 0) & (top_k < num_left):
            low, upper = lowest, high
            while low < upper:
                middle = low + (upper - low + 1) // 2
                count, _weight = _tally(source_ptr, size, temperature, top, middle, BLOCK)
                if count >= top_k:
                    low = middle
                else:
                    upper = middle - 1
            lowest = low
            count, weight = _tally(source_ptr, size, temperature, top, lowest + 1, BLOCK)
            ties = top_k - count
            total = weight + ties * tl.exp(_value(lowest) - top)
        if top_p < 1.0:
            wanted = top_p * total
            low, upper = lowest, high
            while low < upper:
                middle = low + (upper - low + 1) // 2
                _count, weight = _tally(source_ptr, size, temperature, top, middle, BLOCK)
                if weight >= wanted:
                    low = middle
                else:
                    upper = middle - 1
            _count, weight = _tally(source_ptr, size, temperature, top, low + 1, BLOCK)
            missing = (wanted - weight) / tl.exp(_value(low) - top)
            needed = tl.maximum(tl.ceil(missing).to(tl.int32), 1)
            if low == lowest:
                needed = tl.minimum(needed, ties)
            ties = needed
            lowest = low
        bound = _value(lowest)

        # The id of the last of those ties; where all stay, no id is too high.
        seen = 0
        for start in range(0, vocab_size, BLOCK):
            index = start + tl.arange(0, BLOCK)
            values = tl.load(row_ptr + index, mask=index < vocab_size, other=-float("inf")).to(tl.float32)
            is_tie = (_scaled(values, temperature) == bound) & (index < vocab_size)
            rank = seen + tl.cumsum(is_tie.to(tl.int32), axis=0)
            last_id = tl.minimum(last_id, tl.min(tl.where(is_tie & (rank == ties), index, vocab_size), axis=0))
            seen += tl.sum(is_tie.to(tl.int32), axis=0)
    tl.store(bounds_ptr + row, bound)
    tl.store(last_ids_ptr + row, last_id)


@triton.jit(do_not_specialize_on_alignment=["repetition_ptr", "frequency_ptr", "presence_ptr"])
def _penalties_kernel(
    logits_ptr,
    starts_ptr,
    ids_ptr,
    counts_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    stride,
    BLOCK: tl.constexpr,
):
    """One row: each token that it has seen is read and written once."""
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetition_ptr + row)
    frequency, presence = tl.load(frequency_ptr + row), tl.load(presence_ptr + row)
    end = tl.load(starts_ptr + row + 1)
    for start in range(tl.load(starts_ptr + row), end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < end
        token = tl.load(ids_ptr + index, mask=inside, other=0)
        count = tl.load(counts_ptr + index, mask=inside, other=0)
        values = tl.load(logits_ptr + row * stride + token, mask=inside, other=0.0)
        values = tl.where(values > 0, tl.div_rn(values, tl.zeros_like(values) + repetition), values * repetition)
        cost = count.to(tl.float32) * frequency + presence
        values = tl.where(count > 0, values - cost, values)
        tl.store(logits_ptr + row * stride + token, values, mask=inside)


@triton.jit
def _verify_kernel(
    targets_ptr, starts_ptr, drafts_ptr, counts_ptr, tokens_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """One row: the first draft that differs ends it."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(starts_ptr + row)
    num_drafts = tl.load(starts_ptr + row + 1) - start
    place = tl.arange(0, BLOCK)
    own = tl.load(targets_ptr + start + row + place, mask=place <= num_drafts, other=0)
    draft = tl.load(drafts_ptr + start + place, mask=place < num_drafts, other=0)
    differs = (place >= num_drafts) | (own != draft)
    count = tl.min(tl.where(differs, place, BLOCK), axis=0) + 1
    count = tl.minimum(count, num_drafts + 1)
    tl.store(counts_ptr + row, count)
    tl.store(tokens_ptr + row * WIDTH + place, tl.where(place < count, own, 0), mask=place < WIDTH)
