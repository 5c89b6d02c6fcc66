"""A decode step of a dense model on a CPU: calls of the C++ library, with nothing made between them.

The same bits as `DecoderForCausalLM` makes of the ops one by one. A step's weights go through all caches, so whatever
Python does next it does from main memory, at a quarter of its usual speed: there, making a tensor takes as long as the
products of a layer.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels.attend.cpu import LayerCache, attention_struct
from engine.kernels.decode.cpu import layer_struct
from engine.kernels.native.library import Batch, Epilogue, Layer, load_library
from engine.kernels.native.packing import PackedWeight

if TYPE_CHECKING:
    from engine.models.decoder import NativeParts
    from engine.runner.inputs import StepArrays


class NativeStep:
    """Owns the activations and logits of a step. What a method returns holds until the next call of either.

    A step is told by its arrays: others than before are looked at once, the same are taken to hold other numbers.
    """

    def __init__(self, parts: NativeParts, kv_cache: list[LayerCache], block_size: int) -> None:
        self._parts, self._kv_cache, self._block_size = parts, kv_cache, block_size
        self._library = load_library()
        structs = [
            layer_struct(layer, cache.struct, attention_struct(layer.spec, layer.cos_sin))
            for layer, cache in zip(parts.layers, kv_cache, strict=True)
        ]
        self._layers = (Layer * len(structs))(*structs)
        self._calls: _Calls | None = None

    def pick_likeliest(self, arrays: StepArrays) -> list[int]:
        """The likeliest next token of each row of a decode step; fills the KV cache."""
        calls = self._run_layers(arrays)
        self._library.linear_argmax(*calls.argmax)
        picked: list[int] = calls.picked.tolist()
        return picked

    def compute_logits(self, arrays: StepArrays) -> Tensor:
        """The same, but all logits, float32 [R, vocab]."""
        calls = self._run_layers(arrays)
        self._library.linear(*calls.linear)
        return calls.logits

    def _run_layers(self, arrays: StepArrays) -> _Calls:
        calls = self._calls
        if calls is None or calls.arrays is not arrays:
            calls = self._calls = _Calls(self._parts, self._layers, arrays, self._block_size)
        calls.token_ids[:] = arrays.token_ids
        if calls.embedding is None:
            calls.embed()
        else:
            self._library.unpack_rows(*calls.embedding)
        self._library.decode(*calls.layers)
        return calls


class _Calls:
    """The arguments of the library's calls for the steps in some arrays, and the memory that they point to."""

    def __init__(self, parts: NativeParts, layers: ctypes.Array[Layer], arrays: StepArrays, block_size: int) -> None:
        rows, hidden_size, vocab_size = arrays.num_rows, parts.norm.shape[0], parts.head.num_outputs
        self.arrays = arrays
        self.token_ids = np.zeros(rows, dtype=np.int64)
        self.picked = np.zeros(rows, dtype=np.int64)
        self.logits = torch.empty(rows, vocab_size)
        self._embedding = parts.embedding
        self._hidden = torch.empty(rows, hidden_size).numpy()  # torch aligns it
        self._batch = _batch_struct(arrays, block_size)
        hidden, table = _address(self._hidden), parts.embedding.table
        self.embedding = (
            (table.address, _address(self.token_ids), rows, hidden) if isinstance(table, PackedWeight) else None
        )
        self.layers = (
            *(hidden, hidden_size, ctypes.addressof(layers), len(layers)),
            *(ctypes.addressof(self._batch), parts.layers[0].norm_eps),
        )
        head = hidden, hidden_size, parts.norm.data_ptr(), parts.norm_eps, parts.head.address, rows
        self.argmax = *head, _address(self.picked)
        self.linear = *head, self.logits.data_ptr(), vocab_size, Epilogue.STORE

    def embed(self) -> None:
        """Look the tokens up in a table that is not the library's."""
        self._hidden[:] = self._embedding(torch.from_numpy(self.token_ids)).numpy()


def _batch_struct(arrays: StepArrays, block_size: int) -> Batch:
    if not arrays.is_decode:
        raise ValueError("a native step takes the arrays of a decode step")
    indices = (arrays.positions, arrays.slots, arrays.query_start_loc, arrays.seq_lens, arrays.block_tables)
    if any(array.dtype != np.int32 for array in indices):
        raise ValueError("the index arrays of a step must be int32")
    rows, width = arrays.block_tables.shape
    return Batch(*map(_address, indices), num_tokens=rows, num_rows=rows, table_width=width, block_size=block_size)


def _address(array: npt.NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("the library reads and writes contiguous arrays")
    return array.ctypes.data
