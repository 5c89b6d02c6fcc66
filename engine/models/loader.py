"""Baked folder → model: maps model.safetensors, hands out views of it, builds the class that the registry names.

Names in the file (written by `appliance.bake`): ``embed_tokens.weight``, ``lm_head.weight`` (absent when tied),
``norm.weight`` and, under ``layers.{i}.``: ``input_norm``, ``qkv_proj``, ``q_norm``, ``k_norm``, ``o_proj``,
``post_attention_norm``, ``gate_up_proj``, ``down_proj``, each ``.weight``, some ``.bias``.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.kernels.packed import FORMATS, PackedTensor, packed_bytes
from engine.layers.build import Build
from engine.models import ARCHITECTURES
from engine.models.config import ModelConfig
from engine.models.decoder import DecoderForCausalLM

PACKED = "breadbox.packed"  # metadata of matrices that bake packed: name → [format, rows, columns, gate and up]
READ_BYTES, READERS = 4 << 20, 4  # one at a time would take twice as long: most of it is the kernel clearing pages
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class MappedWeights:
    """The tensors of a safetensors file as views of one private mapping: nothing is read before it is used, unless
    `read_into` was called.

    `progress` is told the share of the bytes read, or handed out, so far, 0 … 1.
    """

    def __init__(self, path: Path, progress: Callable[[float], None] | None = None) -> None:
        self._path = path
        self._progress = progress
        self._mapping = self._map()
        self._data_start, self._entries = self._read_header()
        self._bytes_left = len(self._mapping) - self._data_start
        self._given: set[str] = set()
        self._is_read = False

    @property
    def is_packed(self) -> bool:
        """Whether there are matrices in it as a CPU reads them."""
        return bool(self._packed)

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self._mapping)

    def read_into(self, memory: mmap.mmap) -> None:
        """Read the whole file into memory of at least `nbytes`; tensors that are handed out from now on lie there.

        ConfigError where it cannot be read, or is not the file any more whose header was looked at.
        """
        view = memoryview(memory)[: self.nbytes]
        try:
            with self._path.open("rb", buffering=0) as file, ThreadPoolExecutor(READERS) as pool:
                starts = range(0, self.nbytes, READ_BYTES)
                for end in pool.map(lambda start: self._read_part(file.fileno(), view, start), starts):
                    self._report(end / self.nbytes)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from None
        if view[: self._data_start] != memoryview(self._mapping)[: self._data_start]:
            raise ConfigError(f"{self._path} was replaced while it was read")
        self._mapping, self._is_read = memory, True

    def _read_part(self, file: int, view: memoryview, start: int) -> int:
        end = min(start + READ_BYTES, self.nbytes)
        while start < end:  # a network's file system may give less than it was asked for
            count = os.preadv(file, [view[start:end]], start)
            if not count:
                raise ConfigError(f"{self._path} became shorter while it was read")
            start += count
        return end

    @property
    def dtype(self) -> torch.dtype:
        """The file's float type: that of the final norm, which is never packed."""
        return self.vector("norm.weight").dtype

    def vector(self, name: str, *shape: int) -> Tensor:
        """A tensor that is no matrix, and so never packed."""
        tensor = self.get(name, *shape)
        if isinstance(tensor, PackedTensor):
            raise ConfigError(f"{self._path}: tensor {name} is packed")
        return tensor

    def get(self, name: str, *shape: int) -> Tensor | PackedTensor:
        """The tensor; ConfigError where it is missing, or not of the shape (any, if none is given)."""
        entry = self._entries.get(name)
        if entry is None:
            raise ConfigError(f"{self._path}: tensor {name} is missing")
        tensor = self._view(name, entry)
        if shape and tuple(tensor.shape) != shape:
            raise ConfigError(f"{self._path}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        self._count(name, tensor.nbytes)
        return tensor

    def __contains__(self, name: str) -> bool:
        """Whether the file has such a tensor."""
        return name in self._entries

    def _map(self) -> mmap.mmap:
        try:
            with self._path.open("rb") as file:
                # Copy-on-write, so that torch gets a writable buffer; nobody writes, so nothing is copied.
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._path} cannot be mapped: {error}") from None

    def _read_header(self) -> tuple[int, dict[str, Any]]:
        length = int.from_bytes(self._mapping[:8], "little")
        try:
            header: dict[str, Any] = {**json.loads(self._mapping[8 : 8 + length])}
            self._packed = dict(json.loads(header.pop("__metadata__", {}).get(PACKED, "{}")))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._path} is not a safetensors file: {error}") from None
        return 8 + length, header

    def _view(self, name: str, entry: dict[str, Any]) -> Tensor | PackedTensor:
        if name not in self._packed:
            return self._tensor(name, entry, DTYPES.get(entry["dtype"]))
        format, rows, columns, is_gate_up = self._packed[name]
        tensor = PackedTensor(self._tensor(name, entry, torch.uint8), (rows, columns), format, is_gate_up)
        if format not in FORMATS or tensor.nbytes != packed_bytes((rows, columns), format, is_gate_up=is_gate_up):
            raise ConfigError(f"{self._path}: packed tensor {name} ({format}) is damaged or of a newer bake")
        return tensor

    def _tensor(self, name: str, entry: dict[str, Any], dtype: torch.dtype | None) -> Tensor:
        if dtype is None:
            raise ConfigError(f"{self._path}: tensor {name} has type {entry['dtype']} (supported: {', '.join(DTYPES)})")
        start, end = (self._data_start + offset for offset in entry["data_offsets"])
        count = (end - start) // dtype.itemsize
        if end > self.nbytes:
            raise ConfigError(f"{self._path} is truncated: tensor {name} ends at byte {end} of {self.nbytes}")
        return torch.frombuffer(self._mapping, dtype=dtype, count=count, offset=start).view(entry["shape"])

    def _count(self, name: str, size: int) -> None:
        if name in self._given:
            return
        self._given.add(name)
        self._bytes_left -= size
        if not self._is_read:
            self._report(1 - self._bytes_left / (self.nbytes - self._data_start))

    def _report(self, share: float) -> None:
        if self._progress is not None:
            self._progress(share)


def make_model(config: ModelConfig, build: Build, max_model_len: int) -> DecoderForCausalLM:
    """Build the model for contexts of at most max_model_len tokens."""
    module, name = ARCHITECTURES[config.architecture].split(":")
    model_class: type[DecoderForCausalLM] = getattr(import_module(module), name)
    return model_class(build, config, max_model_len)
