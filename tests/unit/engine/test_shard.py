"""Which part of a model each rank has: every head, channel and row once, KV heads beside their query heads."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.models.config import ModelConfig, parse_model_config
from engine.models.shard import Shard, make_shard
from engine.span import Span, join_adjacent


def make_config(**fields: Any) -> ModelConfig:
    sizes = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 448,
        "num_hidden_layers": 1, "num_attention_heads": 24, "num_key_value_heads": 4, "max_position_embeddings": 64,
        "head_dim": 16,
    }  # fmt: skip
    return parse_model_config(sizes | fields)


def shards(config: ModelConfig, size: int) -> list[Shard]:
    return [make_shard(config, rank, size) for rank in range(size)]


def covered(spans: list[Span]) -> list[int]:
    return list(chain.from_iterable(range(*span) for span in spans))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12])
def test_everything_is_somewhere(size: int) -> None:
    config = make_config()
    parts = shards(config, size)
    assert covered([part.heads for part in parts]) == list(range(24))
    assert covered([part.inner for part in parts]) == list(range(448))
    assert {part.vocabulary for part in parts} == {parts[0].vocabulary}
    assert covered(list(parts[0].vocabulary)) == list(range(1000))
    assert max(part.inner.size for part in parts) - min(part.inner.size for part in parts) <= 128
    group = 24 // 4
    for part in parts:
        assert set(covered([part.kv_heads])) == {head // group for head in range(*part.heads)}


@pytest.mark.parametrize("size", [2, 8])
def test_cuts_are_between_packed_blocks_and_groups(size: int) -> None:
    for part in shards(make_config(), size):
        assert part.inner.start % 32 == 0
        assert all(rows.start % 16 == 0 for rows in part.vocabulary)


def test_channels_are_cut_in_blocks_of_128_where_there_are_enough() -> None:
    assert [part.inner for part in shards(make_config(intermediate_size=1152), 2)] == [Span(0, 512), Span(512, 1152)]


@pytest.mark.parametrize(
    ("size", "fields", "message"),
    [
        (5, {}, "24 attention heads and 4 KV heads evenly: set it to one of 1, 2, 4, 8, 12, 24"),
        (6, {}, "tensor_parallel_size 6 does not share out"),  # neither divides the other: 6 ranks and 4 KV heads
        (3, {"num_attention_heads": 9, "num_key_value_heads": 1, "intermediate_size": 50}, "intermediate_size 50: at"),
        (3, {"num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 32}, "vocab_size 32: at most 2"),
    ],
)
def test_what_cannot_be_shared_out(size: int, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_shard(make_config(**fields), 0, size)


def test_adjacent_spans_become_one() -> None:
    assert join_adjacent([Span(0, 4), Span(4, 6), Span(8, 9), Span(9, 12)]) == [Span(0, 6), Span(8, 12)]
    assert join_adjacent([]) == []
