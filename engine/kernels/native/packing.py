"""Weights and KV caches in the library's layout, as torch tensors that own the memory.

`pack` is for load time and for bake: what it returns is `PackedWeight.data`, one contiguous uint8 tensor whose layout
(weights.h) is the same on every CPU, so that bake can write it to a file and a start maps it with `from_packed`.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.native.library import Format, Library, Weight, load_library
from engine.kernels.packed import PackedTensor

GROUP = 32  # input channels that share a scale
BLOCK = 16  # output channels of a block
SOURCE_TYPES = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16, torch.float16: Format.FLOAT16}


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A packed [n, k] matrix with its bias; `address` is that of the struct that the library takes."""

    data: Tensor  # uint8
    bias: Tensor | None  # float32 [n], in the packed order and padded
    n: int
    k: int
    format: Format
    is_gate_up: bool
    struct: Weight = field(repr=False)
    address: int

    @property
    def num_outputs(self) -> int:
        """Width of what the product yields: half of n for gate and up."""
        return self.n // 2 if self.is_gate_up else self.n


def exact_format(dtype: torch.dtype) -> Format:
    """The format that keeps a float tensor's values as they are."""
    return SOURCE_TYPES[dtype]


def pack(weight: Tensor, format: Format, *, bias: Tensor | None = None, is_gate_up: bool = False) -> PackedWeight:
    """Pack a float [n, k] matrix; integer formats quantize it in groups of 32 input channels.

    `is_gate_up`: the first n / 2 rows are gates, the rest ups; they are interleaved for the SwiGLU epilogue.
    """
    library, (n, k) = load_library(), weight.shape
    source = weight if weight.stride(1) == 1 else weight.contiguous()
    shape = Weight(n=n, k=k, format=format, gate_up=is_gate_up)
    data = allocate(library.packed_bytes(shape))
    library.pack_floats(
        source.data_ptr(), SOURCE_TYPES[source.dtype], source.stride(0), shape, data.data_ptr(), data.numel()
    )
    return from_packed(data, n, k, format, bias=bias, is_gate_up=is_gate_up)


def pack_codes(
    codes: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    format: Format,
    *,
    bias: Tensor | None = None,
    is_gate_up: bool = False,
) -> PackedWeight:
    """Pack finished codes without rounding anything again.

    codes int8 [n, k] (0 … 15 for int4), scales and minima float16 [n, k / 32]: w = scale · code (+ minimum).
    """
    n, k = codes.shape
    expected = (n, k // GROUP)
    if codes.dtype != torch.int8 or any(t is not None and t.dtype != torch.float16 for t in (scales, minima)):
        raise ValueError("codes must be int8, scales and minima float16")
    if k % GROUP or any(t is not None and tuple(t.shape) != expected for t in (scales, minima)):
        raise ValueError(f"scales and minima must be {expected}, one for each {GROUP} codes of a row")
    library = load_library()
    shape = Weight(n=n, k=k, format=format, gate_up=is_gate_up)
    data = allocate(library.packed_bytes(shape))
    kept = [t.contiguous() for t in (codes, scales, minima) if t is not None]
    pointers = [t.data_ptr() for t in kept] + [None] * (3 - len(kept))
    library.pack_codes(pointers[0] or 0, pointers[1] or 0, pointers[2], shape, data.data_ptr(), data.numel())
    return from_packed(data, n, k, format, bias=bias, is_gate_up=is_gate_up)


def from_packed(
    data: Tensor, n: int, k: int, format: Format, *, bias: Tensor | None = None, is_gate_up: bool = False
) -> PackedWeight:
    """Wrap packed bytes (a mapped file's tensor, say) without copying them."""
    if data.dtype != torch.uint8 or not data.is_contiguous():
        raise ValueError("packed weights are contiguous uint8")
    packed_bias = None if bias is None else _packed_bias(bias, is_gate_up)
    struct = Weight(
        data=data.data_ptr(),
        bias=None if packed_bias is None else packed_bias.data_ptr(),
        data_bytes=data.numel(),
        n=n,
        k=k,
        format=format,
        gate_up=is_gate_up,
    )
    if load_library().packed_bytes(struct) != data.numel():
        raise ValueError(f"{format.name} [{n}, {k}] does not pack to {data.numel()} bytes")
    return PackedWeight(data, packed_bias, n, k, format, is_gate_up, struct, ctypes.addressof(struct))


def wrap(tensor: PackedTensor, bias: Tensor | None) -> PackedWeight:
    """A baked matrix as the library takes it. Raises ConfigError where the bytes don't fit the shape."""
    rows, columns = tensor.shape
    try:
        format = Format[tensor.format.upper()]
        return from_packed(tensor.data, rows, columns, format, bias=bias, is_gate_up=tensor.is_gate_up)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"a packed weight [{rows}, {columns}] is damaged or of a newer bake: {error}") from None


def unpack_rows(weight: PackedWeight, ids: Tensor, library: Library | None = None) -> Tensor:
    """Rows ids[T] (int64) of the matrix as float32 [T, k]."""
    out = torch.empty(ids.numel(), weight.k)
    (library or load_library()).unpack_rows(weight.address, ids.data_ptr(), ids.numel(), out.data_ptr())
    return out


def allocate(size: int) -> Tensor:
    """Zeroed uint8 memory, in huge pages where the kernel has them: one row reads its weights a third faster."""
    return torch.frombuffer(map_memory(size), dtype=torch.uint8)[:size]


def map_memory(size: int) -> mmap.mmap:
    """The same as a mapping. Private: what is shared has huge pages on few machines."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that was built without them refuses
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def has_huge_pages(path: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> bool:
    """Whether `map_memory` gets any."""
    try:
        return "[never]" not in path.read_text(encoding="ascii")
    except OSError:
        return False


def _packed_bias(bias: Tensor, is_gate_up: bool) -> Tensor:
    values = bias.detach().to(torch.float32)
    if not is_gate_up:
        return torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).contiguous()
    half = BLOCK // 2
    halves = values.view(2, -1)
    halves = torch.nn.functional.pad(halves, (0, -halves.shape[1] % half))
    return halves.view(2, -1, half).transpose(0, 1).reshape(-1).contiguous()
