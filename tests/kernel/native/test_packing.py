"""Packed weights: what goes in comes out, exactly for floats and finished codes, within a step for quantized ones."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.native.library import Format, Library, NativeError, Weight, load_library
from engine.kernels.native.packing import (
    PackedWeight,
    from_packed,
    pack,
    pack_codes,
    unpack_rows,
)

SHAPES = [(16, 32), (50, 70), (1, 1), (96, 64), (34, 100)]
BITS_A_WEIGHT = {Format.FLOAT32: 32, Format.BFLOAT16: 16, Format.FLOAT16: 16, Format.INT8: 8.5, Format.INT4: 5}


def packed_bytes(n: int, k: int, format: Format, *, is_gate_up: bool = False) -> int:
    return load_library().packed_bytes(Weight(n=n, k=k, format=format, gate_up=is_gate_up))


def all_rows(weight: PackedWeight) -> torch.Tensor:
    return unpack_rows(weight, torch.arange(weight.n))


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_gate_up", [False, True], ids=["plain", "gate_up"])
def test_floats_keep_their_bits(n: int, k: int, source: torch.dtype, is_gate_up: bool) -> None:
    matrix = torch.randn(2 * n, k).to(source)
    matrix[0, 0] = 1e-7 if source == torch.float16 else 1e-30  # subnormal as float16
    format = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16, torch.float16: Format.FLOAT16}[source]
    assert torch.equal(all_rows(pack(matrix, format, is_gate_up=is_gate_up)), matrix.float())
    assert torch.equal(all_rows(pack(matrix, Format.FLOAT32, is_gate_up=is_gate_up)), matrix.float())


@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.FLOAT16])
def test_floats_round_like_torch(format: Format) -> None:
    dtype = torch.bfloat16 if format == Format.BFLOAT16 else torch.float16
    scales = 10.0 ** torch.arange(-9, 5, dtype=torch.float32)
    matrix = torch.randn(14, 640) * scales[:, None]
    assert torch.equal(all_rows(pack(matrix, format)), matrix.to(dtype).float())


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("is_gate_up", [False, True], ids=["plain", "gate_up"])
def test_quantized_values_are_within_half_a_step(n: int, k: int, is_gate_up: bool) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(2 * n, k)
    groups = torch.nn.functional.pad(matrix, (0, -k % 32)).view(2 * n, -1, 32)
    step8 = groups.abs().amax(-1) / 127
    step4 = (groups.amax(-1) - groups.amin(-1)) / 15
    for format, step in ((Format.INT8, step8), (Format.INT4, step4)):
        error = (all_rows(pack(matrix, format, is_gate_up=is_gate_up)) - matrix).abs()
        allowed = step.repeat_interleave(32, dim=1)[:, :k] * 0.51 + 2e-3 * groups.abs().amax()
        assert (error <= allowed).all()


@pytest.mark.parametrize("is_gate_up", [False, True], ids=["plain", "gate_up"])
def test_codes_are_kept_exactly(is_gate_up: bool) -> None:
    torch.manual_seed(0)
    scales, minima = torch.rand(50, 3).half(), torch.randn(50, 3).half()
    wide = scales.float().repeat_interleave(32, dim=1)
    int8 = torch.randint(-128, 128, (50, 96), dtype=torch.int8)
    assert torch.equal(all_rows(pack_codes(int8, scales, None, Format.INT8, is_gate_up=is_gate_up)), int8 * wide)
    int4 = torch.randint(0, 16, (50, 96), dtype=torch.int8)
    packed = pack_codes(int4, scales, minima, Format.INT4, is_gate_up=is_gate_up)
    assert torch.equal(all_rows(packed), int4 * wide + minima.float().repeat_interleave(32, dim=1))


@pytest.mark.parametrize("format", BITS_A_WEIGHT)
def test_size_is_what_the_format_promises(format: Format) -> None:
    assert packed_bytes(960, 576, format) * 8 == 960 * 576 * BITS_A_WEIGHT[format]


def test_every_build_packs_to_the_same_bytes(library: Library) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(50, 70)
    for format in Format:
        wanted = pack(matrix, format)
        shape = Weight(n=50, k=70, format=format, gate_up=0)
        found = torch.full_like(wanted.data, 255)
        library.pack_floats(matrix.data_ptr(), Format.FLOAT32, 70, shape, found.data_ptr(), found.numel())
        assert torch.equal(found, wanted.data)


def test_packed_bytes_can_be_taken_up_again_without_a_copy() -> None:
    matrix, bias = torch.randn(50, 70), torch.randn(50)
    weight = pack(matrix, Format.INT8, bias=bias)
    again = from_packed(weight.data, 50, 70, Format.INT8, bias=bias)
    assert again.data.data_ptr() == weight.data.data_ptr()
    assert torch.equal(all_rows(again), all_rows(weight))


def test_wrong_sizes_are_refused() -> None:
    weight = pack(torch.randn(50, 70), Format.INT8)
    with pytest.raises(ValueError, match=r"INT8 \[49, 200\] does not pack to"):
        from_packed(weight.data, 49, 200, Format.INT8)
    with pytest.raises(ValueError, match="contiguous uint8"):
        from_packed(weight.data.view(torch.int8), 50, 70, Format.INT8)
    with pytest.raises(ValueError, match="one for each 32 codes"):
        pack_codes(torch.zeros(4, 64, dtype=torch.int8), torch.zeros(4, 1).half(), None, Format.INT8)
    with pytest.raises(NativeError, match="of even n"):
        packed_bytes(3, 4, Format.INT8, is_gate_up=True)
    with pytest.raises(NativeError, match="row id must be within the matrix, not 50"):
        unpack_rows(weight, torch.tensor([50]))
