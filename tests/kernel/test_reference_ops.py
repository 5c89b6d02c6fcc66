"""The reference ops against formulas written the obvious way, and their promise: no bit of a row depends on others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels import make_shapes, resolve_ops
from engine.kernels.attend.shapes import AttendShape
from engine.kernels.batch import AttentionSpec
from engine.kernels.elementwise import exp_, silu_
from tests.kernel.batches import CPU, make_batch, make_cos_sin, make_tables, num_blocks

OPS = resolve_ops("reference")


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("function", [exp_, silu_])
def test_elementwise_results_depend_on_the_value_alone(function: object) -> None:
    values = torch.randn(1000) * 8
    expected = torch.tensor([function(value.repeat(64))[0] for value in values])  # type: ignore[operator]
    for size in (1, 7, 63, 64, 65, 999):
        start = 1000 - size
        assert torch.equal(function(values[start:].clone()), expected[start:])  # type: ignore[operator]
    many = values.repeat(97)
    assert torch.equal(function(many.clone()), expected.repeat(97))  # type: ignore[operator]


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("in_features", "out_features"), [(576, 960), (64, 98), (48, 40), (33, 50), (1536, 576)])
def test_linear_rows_do_not_depend_on_the_batch(in_features: int, out_features: int) -> None:
    torch.manual_seed(0)
    weight = OPS.prepare_linear(torch.randn(out_features, in_features), torch.randn(out_features), torch.float32, CPU)
    norm, x = torch.rand(in_features), torch.randn(70, in_features)
    for op in (OPS.norm_linear, OPS.norm_linear_swiglu):
        alone = torch.cat([op(row[None], norm, 1e-5, weight) for row in x])
        for count in range(1, 71):
            picked = torch.randint(0, 70, (count,))
            assert torch.equal(op(x[picked], norm, 1e-5, weight), alone[picked]), count


def test_linear_equals_the_formula() -> None:
    torch.manual_seed(0)
    weight, bias, norm, x = torch.randn(96, 64), torch.randn(96), torch.rand(64), torch.randn(19, 64)
    prepared = OPS.prepare_linear(weight, bias, torch.float32, CPU)
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    projected = normed @ weight.T + bias
    torch.testing.assert_close(OPS.norm_linear(x, norm, 1e-5, prepared), projected)
    torch.testing.assert_close(OPS.norm_linear(x, None, 1e-5, prepared), x @ weight.T + bias)
    swiglu = F.silu(projected[:, :48]) * projected[:, 48:]
    # A product of two sums, each rounded as the machine's own library adds up.
    torch.testing.assert_close(OPS.norm_linear_swiglu(x, norm, 1e-5, prepared), swiglu, rtol=1e-5, atol=1e-5)
    residual = torch.randn(19, 96)
    expected = residual + x @ weight.T + bias
    OPS.linear_add_(residual, x, prepared)
    torch.testing.assert_close(residual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, norm, x = torch.randn(96, 64) * 0.1, torch.rand(64), torch.randn(19, 64)
    wide = OPS.norm_linear_swiglu(x, norm, 1e-5, OPS.prepare_gate_up(weight, None, torch.float32, CPU))
    half = OPS.norm_linear_swiglu(x.to(dtype), norm.to(dtype), 1e-5, OPS.prepare_gate_up(weight, None, dtype, CPU))
    assert half.dtype is dtype
    torch.testing.assert_close(half.float(), wide, atol=0.03, rtol=0.03)


def test_embedding_widens_what_it_looks_up() -> None:
    table = torch.randn(10, 6).bfloat16()
    x = OPS.embedding(torch.tensor([3, 3, 9]), OPS.prepare_embedding(table, torch.float32, CPU))
    assert torch.equal(x, table[[3, 3, 9]].float())


@pytest.mark.parametrize("shape", make_shapes("attend"), ids=str)
def test_attention_equals_the_formula(shape: AttendShape) -> None:
    torch.manual_seed(0)
    contexts = [context for context, _ in shape.rows]
    tables = make_tables(contexts, shape.block_size)
    spec, norms, cos_sin = _spec(shape), _norms(shape), make_cos_sin(256, shape.head_dim)
    inputs = [torch.randn(context, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim) for context in contexts]
    kv_layer = _kv_layer(shape, tables)
    kv_layer.fill_(float("nan"))  # slots that nobody wrote must not matter
    old = [(context - new, context - new) for context, new in shape.rows if context > new]
    if old:
        keep = torch.tensor([context > new for context, new in shape.rows])
        qkv = torch.cat([x[: context - new] for x, (context, new) in zip(inputs, shape.rows, strict=True)])
        OPS.attend(qkv, kv_layer, make_batch(old, shape.block_size, tables[keep]), cos_sin, spec, *norms)
    qkv = torch.cat([x[context - new :] for x, (context, new) in zip(inputs, shape.rows, strict=True)])
    found = OPS.attend(qkv, kv_layer, make_batch(shape.rows, shape.block_size, tables), cos_sin, spec, *norms)
    wanted = [
        _obvious_attention(x, cos_sin, spec, *norms)[context - new :]
        for x, (context, new) in zip(inputs, shape.rows, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(
    "shape",
    [
        AttendShape(((140, 140),), num_heads=9, num_kv_heads=3, head_dim=64),
        AttendShape(((150, 150),), sliding_window=13),
        AttendShape(((70, 70),), num_heads=7, num_kv_heads=1, head_dim=32, has_qk_norm=True),
    ],
    ids=str,
)
def test_attention_does_not_depend_on_chunks_or_neighbours(shape: AttendShape) -> None:
    torch.manual_seed(0)
    ((length, _),) = shape.rows
    spec, norms, cos_sin = _spec(shape), _norms(shape), make_cos_sin(256, shape.head_dim)
    tables = make_tables([length, 100, 100], shape.block_size)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    x, other = torch.randn(length, width), torch.randn(100, width)

    def run(cuts: list[int], with_neighbours: bool) -> Tensor:
        kv_layer, outputs, start = _kv_layer(shape, tables), [], 0
        for end in [*cuts, length]:
            rows, parts, order = [(end, end - start)], [x[start:end]], [0]
            if with_neighbours and end <= 100:
                rows, parts = [(end, end - start), *rows], [other[start:end], *parts]
                order = [1, 0]
            batch = make_batch(rows, shape.block_size, tables[order])
            outputs.append(OPS.attend(torch.cat(parts), kv_layer, batch, cos_sin, spec, *norms)[start - end :])
            start = end
        return torch.cat(outputs)

    whole = run([], with_neighbours=False)
    for cuts in (list(range(1, length)), [7, 14, 50], [length - 33], [16, 32, 48, 64]):
        assert torch.equal(run(cuts, with_neighbours=False), whole)
        assert torch.equal(run(cuts, with_neighbours=True), whole)


def test_an_implementation_that_lacks_ops_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no implementation 'abacus'"):
        resolve_ops("abacus")


def _spec(shape: AttendShape) -> AttentionSpec:
    scale = shape.head_dim**-0.5
    return AttentionSpec(
        shape.num_heads, shape.num_kv_heads, shape.head_dim, scale, shape.sliding_window, norm_eps=1e-5
    )


def _norms(shape: AttendShape) -> tuple[Tensor | None, Tensor | None]:
    return (torch.rand(shape.head_dim), torch.rand(shape.head_dim)) if shape.has_qk_norm else (None, None)


def _kv_layer(shape: AttendShape, tables: Tensor) -> Tensor:
    count = num_blocks(tables)
    layers = OPS.make_kv_cache(count, shape.block_size, shape.num_kv_heads, shape.head_dim, 1, torch.float32, CPU)
    layer: Tensor = layers[0]
    return layer


def _obvious_attention(
    qkv: Tensor, cos_sin: Tensor, spec: AttentionSpec, q_norm: Tensor | None, k_norm: Tensor | None
) -> Tensor:
    """One whole request [n, (H+2KV)*D], with torch's own attention."""
    count, heads, kv_heads = qkv.shape[0], spec.num_heads, spec.num_kv_heads
    q, k, v = qkv.view(count, -1, spec.head_dim).split([heads, kv_heads, kv_heads], dim=1)
    q = q if q_norm is None else F.rms_norm(q, (spec.head_dim,), q_norm, spec.norm_eps)
    k = k if k_norm is None else F.rms_norm(k, (spec.head_dim,), k_norm, spec.norm_eps)
    cos, sin = (half.repeat(1, 1, 2) for half in cos_sin[:count, None].chunk(2, dim=-1))

    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    index = torch.arange(count)
    sees = (index <= index[:, None]) & (index > index[:, None] - (spec.sliding_window or count))
    out = F.scaled_dot_product_attention(
        rotate(q).transpose(0, 1), rotate(k).transpose(0, 1), v.transpose(0, 1), attn_mask=sees, enable_gqa=True
    )
    return out.transpose(0, 1).reshape(count, -1)
