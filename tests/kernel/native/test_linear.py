"""Linear layers of every build and format: right, within their sizes, and no bit of a row depends on the others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.native.library import Epilogue, Format, Library, NativeError
from engine.kernels.native.packing import PackedWeight, pack, unpack_rows

# Largest error against float64 with the same (unpacked) weights, as a share of the terms' magnitudes.
TOLERANCE = {Format.INT8: 5e-5, Format.INT4: 5e-5, Format.INT4_A8: 1.5e-2}
FLOAT_TOLERANCE = 1e-6
SHAPES = [(96, 64), (960, 576), (16, 32), (50, 70), (8, 1), (33, 257), (1, 40), (130, 96)]
ROWS = [*range(1, 71), 96, 97, 200]


def activations(rows: int, k: int) -> Tensor:
    """Every third row has values that stand out, for which int4_a8 takes more bits."""
    x = torch.randn(rows, k)
    x[::3, torch.randint(k, (1 + k // 64,))] *= 30
    return x


def run(
    library: Library,
    weight: PackedWeight,
    x: Tensor,
    norm: Tensor | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    y: Tensor | None = None,
) -> Tensor:
    if y is None:
        y = torch.full((x.shape[0], weight.num_outputs), float("nan"))
    norm_address = None if norm is None else norm.data_ptr()
    library.linear(
        x.data_ptr(),
        x.stride(0),
        norm_address,
        1e-5,
        weight.address,
        x.shape[0],
        y.data_ptr(),
        y.stride(0),
        epilogue,
    )
    return y


def expected(weight: PackedWeight, x: Tensor, norm: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product in float64, and the sum of its terms' magnitudes, which rounding errors are measured by."""
    wide = x.double()
    if norm is not None:
        wide = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    matrix = unpack_rows(weight, torch.arange(weight.n)).double().T
    extra = torch.zeros(weight.n) if bias is None else bias
    return wide @ matrix + extra, wide.abs() @ matrix.abs() + extra.abs()


def assert_close(found: Tensor, wanted: Tensor, magnitude: Tensor, format: Format) -> None:
    assert ((found - wanted).abs() / magnitude).max() < TOLERANCE.get(format, FLOAT_TOLERANCE)


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("has_extras", [False, True], ids=["plain", "norm+bias"])
def test_product(library: Library, format: Format, n: int, k: int, has_extras: bool) -> None:
    torch.manual_seed(0)
    bias, norm = (torch.randn(n), torch.rand(k)) if has_extras else (None, None)
    weight, x = pack(torch.randn(n, k) * 0.1, format, bias=bias), torch.randn(33, k)
    wanted, magnitude = expected(weight, x, norm, bias)
    assert_close(run(library, weight, x, norm), wanted, magnitude, format)
    residual = torch.randn(33, n)
    summed = run(library, weight, x, norm, Epilogue.ADD, residual.clone())
    assert_close(summed, residual + wanted, residual.abs() + magnitude, format)


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize(("n", "k"), [(2, 40), (16, 32), (30, 70), (3072, 576)])
def test_swiglu(library: Library, format: Format, n: int, k: int) -> None:
    torch.manual_seed(0)
    bias, norm, x = torch.randn(n), torch.rand(k), torch.randn(9, k)
    weight = pack(torch.randn(n, k) * 0.1, format, bias=bias, is_gate_up=True)
    wanted, magnitude = expected(weight, x, norm, bias)
    gate, up = wanted.chunk(2, dim=-1)
    gate_size, up_size = magnitude.chunk(2, dim=-1)
    found = run(library, weight, x, norm, Epilogue.SWIGLU)
    assert_close(found, F.silu(gate) * up, 1.2 * gate_size * up_size + up_size, format)


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("is_gate_up", [False, True], ids=["plain", "gate_up"])
def test_a_row_is_the_same_bits_in_any_company(library: Library, format: Format, is_gate_up: bool) -> None:
    torch.manual_seed(0)
    weight = pack(torch.randn(82, 70), format, bias=torch.randn(82), is_gate_up=is_gate_up)
    x, norm = activations(200, 70), torch.rand(70)
    epilogue = Epilogue.SWIGLU if is_gate_up else Epilogue.STORE
    library.set_num_threads(1)
    alone = torch.cat([run(library, weight, row[None], norm, epilogue) for row in x])
    for threads in (1, 2, 3):
        library.set_num_threads(threads)
        for count in ROWS if threads == 2 else ROWS[::7]:
            picked = torch.randint(0, 200, (count,))
            assert torch.equal(run(library, weight, x[picked], norm, epilogue), alone[picked]), (threads, count)


@pytest.mark.parametrize("format", [Format.INT8, Format.INT4, Format.INT4_A8])
@pytest.mark.parametrize(("n", "k"), [(33, 257), (960, 576), (16, 32)])
def test_tile_registers_give_the_bits_of_vectors(
    tiles_and_vectors: tuple[Library, Library], format: Format, n: int, k: int
) -> None:
    tiles, vectors = tiles_and_vectors
    torch.manual_seed(0)
    weight, x = pack(torch.randn(n, k), format), activations(200, k) * torch.rand(200, 1) * 9
    for count in ROWS:
        assert torch.equal(run(tiles, weight, x[:count]), run(vectors, weight, x[:count])), count


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_8_bits_are_16_where_a_value_stands_out(library: Library, rows: int) -> None:
    """Its neighbours keep their precision: errors are what they would be without it."""
    torch.manual_seed(0)
    weight, x = pack(torch.randn(64, 576), Format.INT4_A8), torch.randn(rows, 576)
    matrix = unpack_rows(weight, torch.arange(64)).double().T
    plain = (run(library, weight, x) - x.double() @ matrix).abs().mean()
    x[:, 100] = 500.0
    with_outlier = (run(library, weight, x) - x.double() @ matrix).abs().mean()
    assert with_outlier < 1.5 * plain


@pytest.mark.parametrize("format", Format)
def test_the_largest_integers_do_not_overflow(library: Library, format: Format) -> None:
    """Activations all of one size and codes all at their top: the sums are as large as they can be."""
    weight, x = pack(torch.ones(33, 96).index_fill(0, torch.tensor([2]), -1.0), format), torch.ones(23, 96)
    x[1::2] = -1.0
    x[4, ::2] = -1.0
    whole = run(library, weight, x)
    wanted, magnitude = expected(weight, x, None, None)
    assert_close(whole, wanted, magnitude, format)
    for count in (1, 2, 9):  # each multiplied in another way than more rows are
        assert torch.equal(torch.cat([run(library, weight, rows) for rows in x.split(count)]), whole)


@pytest.mark.parametrize("format", Format)
def test_strided_rows_and_what_lies_between_them(library: Library, format: Format) -> None:
    torch.manual_seed(0)
    weight, wide = pack(torch.randn(50, 70), format), torch.randn(11, 90)
    wide[:, 70:] = float("nan")  # beyond k: must not be read into anything
    y = torch.full((11, 60), float("nan"))
    run(library, weight, wide[:, :70], y=y)
    assert torch.equal(y[:, :50], run(library, weight, wide[:, :70].contiguous()))
    assert y[:, 50:].isnan().all()


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("rows", [5, 21])
def test_nan_and_infinity_stay_in_their_row(library: Library, format: Format, rows: int) -> None:
    torch.manual_seed(0)
    weight, x = pack(torch.randn(48, 64), format), torch.randn(rows, 64)
    clean = run(library, weight, x)
    x[1, 3], x[3, 40] = float("nan"), float("inf")
    dirty = run(library, weight, x)
    others = [0, 2, *range(4, rows)]
    assert torch.equal(dirty[others], clean[others])
    assert dirty[1].isnan().all()
    assert not dirty[3].isfinite().any()


@pytest.mark.parametrize("format", Format)
def test_zero_and_tiny_rows(library: Library, format: Format) -> None:
    weight = pack(torch.randn(48, 64), format)
    assert torch.equal(run(library, weight, torch.zeros(2, 64)), torch.zeros(2, 48))
    assert run(library, weight, torch.full((1, 64), 1e-42)).abs().max() < 1e-38


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows must be positive, not 0"),
        ({"ldx": 63}, "ldx must be at least k, not 63"),
        ({"ldy": 47}, "ldy must be at least the outputs of a row, not 47"),
        ({"epilogue": 3}, "epilogue must be store, add or swiglu, not 3"),
        ({"epilogue": 2}, "epilogue must be swiglu for gate_up weights only, not 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(library: Library, change: dict[str, int], message: str) -> None:
    weight, x, y = pack(torch.randn(48, 64), Format.INT8), torch.zeros(2, 64), torch.zeros(2, 48)
    values = {"rows": 2, "ldx": 64, "ldy": 48, "epilogue": 0} | change
    with pytest.raises(NativeError, match=message):
        library.linear(
            x.data_ptr(),
            values["ldx"],
            None,
            0.0,
            weight.address,
            values["rows"],
            y.data_ptr(),
            values["ldy"],
            values["epilogue"],
        )


def test_weights_of_the_wrong_size_are_refused(library: Library) -> None:
    weight, x, y = pack(torch.randn(48, 64), Format.INT8), torch.zeros(2, 64), torch.zeros(2, 48)
    weight.struct.data_bytes -= 1
    with pytest.raises(NativeError, match="weight must be as many bytes as its shape packs to"):
        run(library, weight, x, y=y)
