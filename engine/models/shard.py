"""Which part of a model each rank of tensor parallelism has, and which models can be parted so. No torch.

Attention is cut between heads, the feed-forward layers between channels, the vocabulary between rows; norms and the
residual stream are whole on every rank. Where there are fewer KV heads than ranks, ranks share them as copies.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import ConfigError
from engine.span import Span

if TYPE_CHECKING:
    from engine.models.config import ModelConfig

# A matrix may be packed in blocks of 16 rows and in groups of 32 or 128 columns, which stay whole.
VOCABULARY_UNITS = (16,)
INNER_UNITS = (128, 32)


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part."""

    heads: Span
    kv_heads: Span
    inner: Span  # channels between gate_up_proj and down_proj
    vocabulary: tuple[Span, ...]  # rows of embedding and head, of every rank


def make_shard(config: ModelConfig, rank: int, size: int) -> Shard:
    """The part of `rank` among `size`. ConfigError where the model has too few heads, or they cannot be shared out."""
    check_heads(config.num_attention_heads, config.num_key_value_heads, size)
    return Shard(
        heads=_equal_parts(config.num_attention_heads, size)[rank],
        kv_heads=_kv_heads(config.num_key_value_heads, rank, size),
        inner=_parts("intermediate_size", config.intermediate_size, INNER_UNITS, size)[rank],
        vocabulary=tuple(_parts("vocab_size", config.vocab_size, VOCABULARY_UNITS, size)),
    )


def check_heads(num_heads: int, num_kv_heads: int, size: int) -> None:
    """ConfigError where heads cannot be shared out among so many ranks; it names the sizes that can."""
    if not _fits(num_heads, num_kv_heads, size):
        fitting = [str(n) for n in range(1, num_heads + 1) if _fits(num_heads, num_kv_heads, n)]
        raise ConfigError(
            f"tensor_parallel_size {size} does not share out the model's {num_heads} attention heads and "
            f"{num_kv_heads} KV heads evenly: set it to one of {', '.join(fitting)}"
        )


def _fits(num_heads: int, num_kv_heads: int, size: int) -> bool:
    return num_heads % size == 0 and (num_kv_heads % size == 0 or size % num_kv_heads == 0)


def _kv_heads(count: int, rank: int, size: int) -> Span:
    if count >= size:
        return _equal_parts(count, size)[rank]
    shared = rank * count // size
    return Span(shared, shared + 1)


def _equal_parts(count: int, size: int) -> list[Span]:
    part = count // size
    return [Span(rank * part, (rank + 1) * part) for rank in range(size)]


def _parts(name: str, count: int, units: tuple[int, ...], size: int) -> list[Span]:
    """Runs of whole units, the largest that are enough for all, as equal as those allow; the last unit may be short."""
    counts = {unit: -(-count // unit) for unit in units}
    unit = next((unit for unit in units if counts[unit] >= size), None)
    if unit is None:
        most = counts[units[-1]]
        raise ConfigError(f"tensor_parallel_size {size} is too large for the model's {name} {count}: at most {most}")
    ends = [min(counts[unit] * rank // size * unit, count) for rank in range(size + 1)]
    return [Span(start, end) for start, end in itertools.pairwise(ends)]
