"""Attention of every build: right over shapes and cache formats, untouched neighbours, the same bits however cut."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.attend.cpu import LayerCache, attention_struct, batch_struct, make_kv_cache
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.elementwise import round_to_codes
from engine.kernels.native.library import Library, NativeError
from tests.kernel.batches import CPU, make_batch, make_cos_sin, make_tables, num_blocks

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.int8: 6e-2}  # of outputs around 1
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16", "int8"])


@dataclass(frozen=True)
class Shape:
    """Heads and options of one case; rows as (context length, new tokens)."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    block_size: int = 16
    window: int | None = None
    has_norms: bool = False

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.heads, self.kv_heads, self.dim, self.dim**-0.5, self.window, 1e-5)

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim


SHAPES = [
    Shape(((1, 1),)),
    Shape(((300, 300),)),
    Shape(((257, 1), (256, 1), (255, 1), (16, 1), (17, 1), (1, 1))),
    Shape(((700, 40), (3, 3), (64, 1), (33, 16))),
    Shape(((600, 1),), heads=9, kv_heads=3, dim=64),
    Shape(((130, 130), (520, 1)), heads=9, kv_heads=3, dim=64, block_size=32),
    Shape(((90, 90), (270, 3)), heads=8, kv_heads=1, dim=80),
    Shape(((60, 60), (280, 1)), heads=6, kv_heads=6, dim=96, has_norms=True),
    Shape(((40, 40), (290, 2)), heads=4, kv_heads=2, dim=128, block_size=64, has_norms=True),
    Shape(((30, 30), (530, 1)), heads=2, kv_heads=1, dim=256),
    Shape(((50, 50), (300, 1)), heads=4, kv_heads=4, dim=6),
    Shape(((50, 50), (300, 1)), heads=4, kv_heads=2, dim=40, has_norms=True),
    Shape(((700, 700), (700, 1), (5, 1)), window=100),
    Shape(((600, 100), (520, 1)), window=300, block_size=32),
    Shape(((40, 40), (40, 1)), window=1),
]


class Run:
    """A cache, the inputs of whole requests, and steps over them."""

    def __init__(self, library: Library, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.library, self.shape = library, shape
        self.tables = make_tables([context for context, _ in shape.rows], shape.block_size)
        self.inputs = [torch.randn(context, shape.width) for context, _ in shape.rows]
        self.norms = [torch.rand(shape.dim) + 0.5 for _ in range(2)] if shape.has_norms else [None, None]
        self.cos_sin = make_cos_sin(1024, shape.dim)
        self.cache = self.make_cache(dtype)

    def make_cache(self, dtype: torch.dtype) -> LayerCache:
        shape = self.shape
        blocks = num_blocks(self.tables)
        cache = make_kv_cache(blocks, shape.block_size, shape.kv_heads, shape.dim, 1, dtype, CPU)[0]
        if shape.dim % 16 == 0:  # slots that nobody wrote must not matter; padding of a head must stay zero
            cache.data.fill_(0xFF)  # NaN in every float type, and NaN for the scales of int8
        return cache

    def step(self, rows: list[tuple[int, int, int]]) -> list[Tensor]:
        """rows: (request, first token, end); outputs of each."""
        order = [request for request, _, _ in rows]
        batch = make_batch([(end, end - start) for _, start, end in rows], self.shape.block_size, self.tables[order])
        qkv = torch.cat([self.inputs[request][start:end] for request, start, end in rows])
        out = call(self.library, qkv, self.cache, batch, self.cos_sin, self.shape.spec, self.norms)
        return list(out.split([end - start for _, start, end in rows]))

    def prefill_old(self) -> None:
        old = [(i, 0, context - new) for i, (context, new) in enumerate(self.shape.rows) if context > new]
        if old:
            self.step(old)

    def new(self) -> list[Tensor]:
        return self.step([(i, context - new, context) for i, (context, new) in enumerate(self.shape.rows)])


def call(
    library: Library,
    qkv: Tensor,
    cache: LayerCache,
    batch: StepBatch,
    cos_sin: Tensor,
    spec: AttentionSpec,
    norms: list[Tensor | None],
) -> Tensor:
    qkv, out = qkv.clone(), torch.full((qkv.shape[0], spec.num_heads * spec.head_dim), float("nan"))
    structs = [cache.struct, batch_struct(batch), attention_struct(spec, cos_sin)]
    addresses = [ctypes.addressof(struct) for struct in structs]
    norm_addresses = [None if norm is None else norm.data_ptr() for norm in norms]
    library.attend(qkv.data_ptr(), *addresses, *norm_addresses, out.data_ptr())
    return out


def obvious(x: Tensor, run: Run) -> Tensor:
    """Attention of a whole request in float64."""
    shape, length = run.shape, x.shape[0]
    heads = x.double().view(length, -1, shape.dim)
    q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    if shape.has_norms:
        q, k = (
            t / (t.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
            for t, norm in zip((q, k), run.norms, strict=True)
        )
    cos, sin = run.cos_sin[:length].double()[:, None].chunk(2, dim=-1)

    def turn(t: Tensor) -> Tensor:
        a, b = t.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    q, k = turn(q), turn(k).repeat_interleave(shape.heads // shape.kv_heads, dim=1)
    v = v.repeat_interleave(shape.heads // shape.kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * shape.dim**-0.5
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = (distance < 0) | (distance >= (shape.window or length))
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).reshape(length, -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@DTYPES
def test_equals_the_formula(library: Library, shape: Shape, dtype: torch.dtype) -> None:
    run = Run(library, shape, dtype)
    run.prefill_old()
    for found, x, (_, new) in zip(run.new(), run.inputs, shape.rows, strict=True):
        assert (found - obvious(x, run)[-new:]).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "shape",
    [
        Shape(((530, 530), (90, 90), (290, 290)), heads=9, kv_heads=3, dim=64),
        Shape(((530, 530), (90, 90), (290, 290)), window=37, block_size=32),
        Shape(((530, 530), (40, 40), (270, 270)), heads=2, kv_heads=1, dim=80, has_norms=True),
    ],
    ids=str,
)
@DTYPES
def test_a_token_is_the_same_bits_however_the_work_is_cut(library: Library, shape: Shape, dtype: torch.dtype) -> None:
    library.set_num_threads(1)
    whole = Run(library, shape, dtype).new()
    length = shape.rows[0][0]
    for threads in (1, 2, 3):
        library.set_num_threads(threads)
        for cuts in ([100, 101, 257, 400], [1, 2, 256, 512], list(range(length - 5, length))):
            run = Run(library, shape, dtype)
            parts: list[list[Tensor]] = [[], [], []]
            start = 0
            for end in [*cuts, length]:
                rows = [(0, start, end)]
                for other in (1, 2):  # the others keep up as long as they are long enough
                    size = shape.rows[other][0]
                    if start < size:
                        rows.insert(0, (other, start, min(end, size)))
                for (request, _, _), out in zip(rows, run.step(rows), strict=True):
                    parts[request].append(out)
                start = end
            for request in range(3):
                assert torch.equal(torch.cat(parts[request]), whole[request]), (threads, cuts, request)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.dim % 32 == 0], ids=str)
def test_tile_registers_lose_no_more_than_the_last_bits(
    tiles_and_vectors: tuple[Library, Library], shape: Shape
) -> None:
    """Over the same bfloat16 cache, beside float32 products: what is split in two halves keeps 16 bits of mantissa."""
    results = []
    for library in tiles_and_vectors:
        run = Run(library, shape, torch.bfloat16)
        run.prefill_old()
        results.append(torch.cat(run.new()))
    assert (results[0] - results[1]).abs().max() < 1e-4


@DTYPES
@pytest.mark.parametrize("block_size", [16, 32])
def test_only_the_step_s_slots_are_written(library: Library, dtype: torch.dtype, block_size: int) -> None:
    shape = Shape(((40, 1), (17, 2)), block_size=block_size)
    run = Run(library, shape, dtype)
    run.prefill_old()
    before = slots(run, dtype)
    run.new()
    after = slots(run, dtype)
    new = {(0, 39), (1, 15), (1, 16)}
    for row, (context, _) in enumerate(shape.rows):
        for position in range(run.tables.shape[1] * block_size):
            slot = int(run.tables[row, position // block_size]) * block_size + position % block_size
            changed = not torch.equal(before[slot].nan_to_num(7.0), after[slot].nan_to_num(7.0))
            assert changed == ((row, position) in new), (row, position, context)


def slots(run: Run, dtype: torch.dtype) -> Tensor:
    """The cache as [slots, values of a slot], by the layout that attention.h documents."""
    shape = run.shape
    sides = run.cache.data.view(num_blocks(run.tables), shape.kv_heads, 2, shape.block_size // 16, -1)
    if dtype == torch.int8:
        codes, scales = (
            sides[..., : 16 * shape.dim].view(dtype).float(),
            sides[..., 16 * shape.dim :].view(torch.float32),
        )
        keys, values = plain_sides(codes, shape)
        keys, values = keys * scales[:, :, 0, ..., None], values * scales[:, :, 1, ..., None]
    elif dtype == torch.float32:
        keys, values = plain_sides(sides.view(dtype), shape)
    else:
        keys, values = (side.float() for side in sides.view(dtype).clone().unbind(2))
        keys = keys.unflatten(-1, (shape.dim // 2, 16, 2)).movedim(4, 3).flatten(4)
        values = values.unflatten(-1, (shape.dim // 16, 8, 16, 2)).permute(0, 1, 2, 4, 6, 3, 5).flatten(3, 4).flatten(4)
    return torch.cat([keys, values], dim=-1).permute(0, 2, 3, 1, 4).flatten(0, 2).flatten(1)


def plain_sides(sides: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Keys and values as [block, kv, sub, slot, d] of a format that keeps numbers one by one."""
    keys, values = sides.clone().unbind(2)
    keys = keys.unflatten(-1, (shape.dim, 16)).movedim(-1, 3)
    values = values.unflatten(-1, (shape.dim // 16, 16, 16)).movedim(4, 3).flatten(4)
    return keys, values


@DTYPES
def test_layout_holds_keys_and_values_where_it_says(library: Library, dtype: torch.dtype) -> None:
    shape = Shape(((40, 40),), block_size=32)
    run = Run(library, shape, dtype)
    run.new()
    # Values are not rotated: they are found as they were given, rounded as the type rounds them.
    values = run.inputs[0].view(40, -1, shape.dim)[:, shape.heads + shape.kv_heads :]
    wanted = round_to_codes(values, dtype) if dtype == torch.int8 else values.to(dtype).float()
    found = slots(run, dtype).view(-1, shape.kv_heads, 2, shape.dim)[:, :, 1]
    for position in range(40):
        slot = int(run.tables[0, position // 32]) * 32 + position % 32
        torch.testing.assert_close(found[slot], wanted[position], rtol=1e-6 if dtype == torch.int8 else 0, atol=0)


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e30, float("nan"), float("inf")])
def test_int8_keeps_heads_of_any_size(library: Library, value: float) -> None:
    """Zero and tiny heads count as zero; one that is no number spoils its own request only."""
    run = Run(library, Shape(((20, 20), (20, 20))), torch.int8)
    run.inputs[0][:, -run.shape.dim :] = value  # the last head of the values
    expected = Run(library, run.shape, torch.int8).new()[1]
    spoilt, other = run.new()
    assert torch.equal(other, expected)
    assert spoilt.isfinite().all() == (value in (0.0, 1e-38, 1e30))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("slot_mapping", 10**6, "slot_mapping must be a slot of the cache"),
        ("slot_mapping", -1, "slot_mapping must be a slot of the cache"),
        ("positions", 1024, "positions must be within cos_sin"),
        ("block_tables", 99, "block_tables must be blocks of the cache"),
        ("seq_lens", 10**6, "seq_lens must be within the block table"),
        ("seq_lens", 0, "seq_lens must be at least the row's tokens"),
        ("query_start_loc", 1, "query_start must be 0 … num_tokens"),
    ],
)
def test_indices_out_of_bounds_are_refused(library: Library, field: str, value: int, message: str) -> None:
    run = Run(library, Shape(((20, 20),)))
    batch = make_batch([(20, 20)], 16, run.tables)
    getattr(batch, field).view(-1)[0] = value
    with pytest.raises(NativeError, match=message):
        call(library, run.inputs[0], run.cache, batch, run.cos_sin, run.shape.spec, run.norms)


def test_a_soft_cap_is_refused_where_the_layers_are_described() -> None:
    spec = AttentionSpec(4, 2, 32, 32**-0.5, None, 1e-5, soft_cap=50.0)
    with pytest.raises(ConfigError, match=r"soft cap \(soft_cap, Gemma 2's\) has no CPU kernel: set device to cuda"):
        attention_struct(spec, make_cos_sin(16, 32))
