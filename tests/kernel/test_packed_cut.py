"""Parts of packed matrices hold the very numbers of those rows and columns, in every format."""

from __future__ import annotations

import pytest
import torch

from engine.errors import ConfigError
from engine.kernels.native.library import Format
from engine.kernels.native.packing import pack
from engine.kernels.native.targets import is_built
from engine.kernels.packed import PackedTensor, packed_bytes, unpack
from engine.kernels.packed_cut import cut_packed_columns, cut_packed_rows
from engine.span import Span

PACKED = ["float32", "bfloat16", "float16", "int8", "int4"]
FLOAT8 = ["fp8", "fp8_block"]
pytestmark = pytest.mark.skipif(not is_built(), reason="the C++ library is not built")


def make_packed(format: str, rows: int, columns: int, *, is_gate_up: bool = False) -> PackedTensor:
    torch.manual_seed(rows + columns)
    values = torch.randn(rows, columns)
    if format not in FLOAT8:
        data = pack(values, Format[format.upper()], is_gate_up=is_gate_up).data
        return PackedTensor(data, (rows, columns), format, is_gate_up)
    blocks = 1 if format == "fp8" else -(-columns // 128)
    scales = torch.rand(blocks, rows) + 0.5
    data = torch.cat([scales.view(torch.uint8).view(-1), values.to(torch.float8_e4m3fn).view(torch.uint8).view(-1)])
    return PackedTensor(data, (rows, columns), format, is_gate_up)


def check(part: PackedTensor, expected: torch.Tensor) -> None:
    assert part.shape == tuple(expected.shape)
    assert part.data.is_contiguous()
    assert part.nbytes == packed_bytes(part.shape, part.format, is_gate_up=part.is_gate_up)
    assert torch.equal(unpack(part), expected)


@pytest.mark.parametrize("format", [*PACKED, *FLOAT8])
def test_rows(format: str) -> None:
    packed = make_packed(format, 72, 160)
    whole = unpack(packed)
    check(cut_packed_rows(packed, [Span(16, 48)]), whole[16:48])
    check(cut_packed_rows(packed, [Span(48, 72)]), whole[48:])  # the last block is short
    check(
        cut_packed_rows(packed, [Span(0, 16), Span(32, 48), Span(64, 72)]),
        whole[[*range(16), *range(32, 48), *range(64, 72)]],
    )


@pytest.mark.parametrize("format", PACKED)
def test_gate_and_up_rows_stay_side_by_side(format: str) -> None:
    packed = make_packed(format, 2 * 84, 64, is_gate_up=True)
    gate, up = unpack(packed).chunk(2)
    for channels in (Span(0, 32), Span(32, 84)):
        part = cut_packed_rows(packed, [channels, channels.after(84)])
        check(part, torch.cat([gate[slice(*channels)], up[slice(*channels)]]))


@pytest.mark.parametrize("format", [*PACKED, *FLOAT8])
def test_columns(format: str) -> None:
    packed = make_packed(format, 40, 300)
    whole = unpack(packed)
    check(cut_packed_columns(packed, Span(0, 128)), whole[:, :128])
    check(cut_packed_columns(packed, Span(128, 300)), whole[:, 128:])  # the last group is short


def test_a_cut_through_a_block_or_group_is_refused() -> None:
    packed = make_packed("int4", 64, 128)
    with pytest.raises(
        ConfigError, match=r"packed as int4 cannot be cut into rows 8 to 32, only between multiples of 16"
    ):
        cut_packed_rows(packed, [Span(8, 32)])
    with pytest.raises(ConfigError, match=r"columns 0 to 48, only between multiples of 32: choose another"):
        cut_packed_columns(packed, Span(0, 48))
