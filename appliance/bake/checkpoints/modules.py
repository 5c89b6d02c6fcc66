"""One quantized linear layer of each kind, as codes, scales and zeros: w[n, k] = (code - zero) · scale of k's group.

Rows are output channels, as in a plain weight, whatever way the checkpoint stores them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from appliance.bake.checkpoints.bits import E4M3, unpack_words
from appliance.bake.checkpoints.schemes import Scheme
from appliance.bake.dtypes import convert
from appliance.bake.safetensors_file import SafetensorsWeights
from appliance.bake.source import Array
from appliance.errors import BakeError

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which field of a word holds its first, second, … output channel


@dataclass(frozen=True)
class Module(ABC):
    """What a kind says of itself, and what follows from it."""

    files: SafetensorsWeights
    name: str
    scheme: Scheme

    parts: ClassVar[tuple[str, ...]]  # its tensors under its name, those that it need not have among them

    @property
    @abstractmethod
    def format(self) -> str:
        """What its codes are: int4 (0 … 15), int8 (signed) or fp8 (e4m3 bits in uint8)."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Output and input channels."""

    @abstractmethod
    def codes(self, start: int, stop: int) -> Array:
        """Rows [start, stop) of the codes."""

    @property
    @abstractmethod
    def scales(self) -> Array:
        """float32 [rows, groups]."""

    @property
    def zeros(self) -> Array | None:
        """int16 [rows, groups] in the codes' own numbers; None where they are symmetric: 8 for int4, else 0."""
        return None

    @property
    def group_of(self) -> Array:
        """The group of each input channel; as many to each unless the checkpoint lists them."""
        columns = self.shape[1]
        return np.asarray(np.arange(columns) // -(-columns // self.scales.shape[1]))

    def values(self, start: int, stop: int) -> Array:
        """Rows [start, stop) as float32."""
        codes = self.codes(start, stop)
        numbers = E4M3[codes] if self.format == "fp8" else codes.astype(np.float32)
        if self.zeros is not None:
            numbers = numbers - self.zeros[start:stop, self.group_of]
        elif self.format == "int4":
            numbers = numbers - np.float32(8)
        return np.asarray(numbers * self.scales[start:stop, self.group_of], np.float32)

    def tensor(self, part: str) -> str:
        """The full name of one of its tensors."""
        return f"{self.name}.{part}"

    def has(self, part: str) -> bool:
        """Whether the checkpoint has it."""
        return self.tensor(part) in self.files.names()

    def raw(self, part: str, dtype: str, *shape: int) -> Array:
        """A tensor as it is stored. Raises BakeError where it is missing, or of another dtype or shape."""
        name = self.tensor(part)
        if not self.has(part):
            raise BakeError(f"tensor {name} is missing from the source")
        found, kind = self.files.shape(name), self.files.stored_dtype(name)
        if kind != dtype or (shape and found != shape):
            expected = f"{dtype} {list(shape)}" if shape else dtype
            raise BakeError(f"tensor {name} is {kind} {list(found)}, {self.scheme.method} needs {expected}")
        return self.files.raw(name)

    def floats(self, part: str) -> Array:
        """A floating tensor, whole, as float32."""
        name = self.tensor(part)
        if not self.has(part):
            raise BakeError(f"tensor {name} is missing from the source")
        shape = self.files.shape(name)
        array = self.files.read(name, 0, shape[0]) if shape else self.files.raw(name)
        return convert(array, self.files.dtype(name), "float32", name)

    def index(self, part: str, groups: int) -> Array | None:
        """The group of each input channel where a tensor lists them; None without one (or with one that is unset)."""
        if not self.has(part):
            return None
        found = self.raw(part, "I32", self.shape[1])
        if found.max() < 0:
            return None
        if found.min() < 0 or found.max() >= groups:
            raise BakeError(f"tensor {self.tensor(part)} names groups that there are not ({groups} groups)")
        return np.asarray(found, np.int64)


class AwqModule(Module):
    """qweight int32 [K, N / 8], qzeros int32 [groups, N / 8], scales [groups, N]; fields are in `_AWQ_ORDER`."""

    parts = ("qweight", "qzeros", "scales")
    format = "int4"

    @cached_property
    def shape(self) -> tuple[int, int]:
        columns, words = self.raw("qweight", "I32").shape
        return 8 * words, columns

    @cached_property
    def scales(self) -> Array:
        return _checked(self, self.floats("scales").T)

    @cached_property
    def zeros(self) -> Array:
        rows, groups = self.scales.shape
        return self._rows(self.raw("qzeros", "I32", groups, rows // 8)).astype(np.int16)

    def codes(self, start: int, stop: int) -> Array:
        first = start // 8
        words = self.raw("qweight", "I32")[:, first : -(-stop // 8)]
        return self._rows(words)[start - 8 * first : stop - 8 * first]

    def _rows(self, words: Array) -> Array:
        """int32 [n, N / 8] to uint8 [N, n]."""
        fields = unpack_words(words, 4).reshape(words.shape[0], -1, 8)
        return fields[:, :, _AWQ_ORDER].reshape(words.shape[0], -1).T


class WordsModule(Module):
    """Codes of four or eight bits inside int32 words; eight bits are stored from 0 on and become signed."""

    index_part: ClassVar[str]  # the tensor that may list the group of each input channel

    @property
    @abstractmethod
    def bits(self) -> int:
        """Of a code: 4 or 8."""

    @property
    def format(self) -> str:
        return f"int{self.bits}"

    @cached_property
    def group_of(self) -> Array:
        found = self.index(self.index_part, self.scales.shape[1])
        return super().group_of if found is None else found

    def numbers(self, fields: Array) -> Array:
        """What fields of words (int16) stand for."""
        return fields - 128 if self.bits == 8 else fields


class GptqModule(WordsModule):
    """qweight int32 [K · bits / 32, N], qzeros int32 [groups, N · bits / 32], scales [groups, N], perhaps g_idx [K]."""

    parts = ("qweight", "qzeros", "scales", "g_idx")
    index_part = "g_idx"

    @property
    def bits(self) -> int:
        return 8 if self.scheme.bits == 8 else 4

    @cached_property
    def shape(self) -> tuple[int, int]:
        words, rows = self.raw("qweight", "I32").shape
        return rows, words * 32 // self.bits

    @cached_property
    def scales(self) -> Array:
        return _checked(self, self.floats("scales").T)

    @cached_property
    def zeros(self) -> Array:
        rows, groups = self.scales.shape
        words = self.raw("qzeros", "I32", groups, -(-rows * self.bits // 32))
        stored = unpack_words(words, self.bits)[:, :rows].T.astype(np.int16)
        # A zero of 0 was stored as -1, that is, as the largest number.
        return self.numbers((stored + self.scheme.zero_offset) & (2**self.bits - 1))

    def codes(self, start: int, stop: int) -> Array:
        fields = unpack_words(self.raw("qweight", "I32")[:, start:stop].T, self.bits)
        return self.numbers(fields.astype(np.int16)).astype(np.int8)


class PackedModule(WordsModule):
    """compressed-tensors' pack-quantized: weight_packed int32 [N, K · bits / 32], weight_scale [N, groups],
    weight_shape, perhaps weight_zero_point int32 [N · bits / 32, groups] and weight_g_idx [K]."""

    parts = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
    index_part = "weight_g_idx"

    @cached_property
    def shape(self) -> tuple[int, int]:
        rows, columns = (int(size) for size in self.raw("weight_shape", "I64", 2))
        return rows, columns

    @cached_property
    def bits(self) -> int:
        (rows, columns), words = self.shape, self.raw("weight_packed", "I32").shape
        for bits in (4, 8):
            if words == (rows, -(-columns * bits // 32)):
                return bits
        raise BakeError(f"tensor {self.tensor('weight_packed')} {list(words)} does not hold {rows} x {columns} weights")

    @cached_property
    def scales(self) -> Array:
        return _checked(self, _by_row(self.floats("weight_scale"), self.shape[0]))

    @cached_property
    def zeros(self) -> Array | None:
        if not self.has("weight_zero_point"):
            return None
        rows, groups = self.scales.shape
        if self.files.stored_dtype(self.tensor("weight_zero_point")) == "I8":  # as older releases write it: signed
            return self.raw("weight_zero_point", "I8", rows, groups).astype(np.int16) + (8 if self.bits == 4 else 0)
        words = self.raw("weight_zero_point", "I32", -(-rows * self.bits // 32), groups)
        return self.numbers(unpack_words(words.T, self.bits)[:, :rows].T.astype(np.int16))

    def codes(self, start: int, stop: int) -> Array:
        fields = unpack_words(self.raw("weight_packed", "I32")[start:stop], self.bits)[:, : self.shape[1]]
        return self.numbers(fields.astype(np.int16)).astype(np.int8)


class Int8Module(Module):
    """compressed-tensors' int-quantized: weight int8 [N, K], weight_scale, perhaps weight_zero_point."""

    parts = ("weight", "weight_scale", "weight_zero_point")
    format = "int8"

    @cached_property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.raw("weight", "I8").shape
        return rows, columns

    @cached_property
    def scales(self) -> Array:
        return _checked(self, _by_row(self.floats("weight_scale"), self.shape[0]))

    @cached_property
    def zeros(self) -> Array | None:
        if not self.has("weight_zero_point"):
            return None
        return _by_row(self.raw("weight_zero_point", "I8"), self.shape[0]).astype(np.int16)

    def codes(self, start: int, stop: int) -> Array:
        return self.raw("weight", "I8")[start:stop]


class Float8Module(Module):
    """weight e4m3 [N, K]; weight_scale, or weight_scale_inv (it multiplies, too): one number, by row or by block."""

    parts = ("weight", "weight_scale", "weight_scale_inv")
    format = "fp8"

    @cached_property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.raw("weight", "F8_E4M3").shape
        return rows, columns

    @cached_property
    def _stored_scales(self) -> Array:
        return self.floats("weight_scale_inv" if self.has("weight_scale_inv") else "weight_scale")

    @cached_property
    def _block(self) -> tuple[int, int] | None:
        """The block that shares a scale; None for one scale, or one a row."""
        (rows, columns), block = self.shape, self.scheme.block
        if block is None or self._stored_scales.shape != (-(-rows // block[0]), -(-columns // block[1])):
            return None
        return block

    @cached_property
    def scales(self) -> Array:
        if self._block is None:
            return _checked(self, _by_row(self._stored_scales, self.shape[0]))
        return np.repeat(self._stored_scales, self._block[0], axis=0)[: self.shape[0]]

    @cached_property
    def group_of(self) -> Array:
        return super().group_of if self._block is None else np.arange(self.shape[1]) // self._block[1]

    def codes(self, start: int, stop: int) -> Array:
        return self.raw("weight", "F8_E4M3")[start:stop]


def find_modules(files: SafetensorsWeights, scheme: Scheme | None) -> dict[str, Module]:
    """The quantized linear layers by the names that their weights would have. Raises BakeError for a stray one."""
    found: dict[str, Module] = {}
    for name in files.names():
        stem, _, part = name.rpartition(".")
        kind = _kind(part, files.stored_dtype(name), scheme)
        if kind is not None and scheme is not None:
            found[f"{stem}.weight"] = kind(files, stem, scheme)
    return found


def _kind(part: str, dtype: str, scheme: Scheme | None) -> type[Module] | None:
    if scheme is None:
        return None
    if part == "qweight":
        return {"awq": AwqModule, "gptq": GptqModule}.get(scheme.method)
    by_dtype: dict[tuple[str, str], Any] = {("weight_packed", "I32"): PackedModule, ("weight", "F8_E4M3"): Float8Module}
    if scheme.method == "compressed-tensors":
        by_dtype["weight", "I8"] = Int8Module
    return by_dtype.get((part, dtype))


def _by_row(factors: Array, rows: int) -> Array:
    """One number, one a row, or [rows, groups] as [rows, groups]."""
    if factors.size == 1:
        return np.broadcast_to(factors.reshape(1, 1), (rows, 1))
    return factors.reshape(rows, 1) if factors.ndim == 1 and len(factors) == rows else factors


def _checked(module: Module, scales: Array) -> Array:
    """The scales, if they fit the module's shape."""
    rows, columns = module.shape
    if scales.ndim != 2 or scales.shape[0] != rows or not 1 <= scales.shape[1] <= columns:
        raise BakeError(f"the scales of {module.name} {list(scales.shape)} do not fit a weight of {rows} x {columns}")
    return scales
