"""ctypes binding of the C interface (abi.h): structs, functions, errors, and the choice of the build for this CPU.

Addresses go in as plain integers, which costs 1.5 µs a call; shapes are checked on the other side. No torch here:
`packing` and the ops' ``cpu.py`` own the tensors.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path

from engine.errors import ConfigError
from engine.kernels.native.targets import cpu_features, isas, library_path, runs_here

ABI_VERSION = 6
SHORT_LOOK_UP = 16  # rows: a third of a millisecond, with int4

STACK_OPS = ("qkv", "rotary, kv write", "attention", "o", "gate, up", "down")  # StackOp of stack.h


class Format(IntEnum):
    """How a weight's numbers are stored and multiplied; see weights.h."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT8 = 3  # groups of 32, float16 scales; int16 activations
    INT4 = 4  # groups of 32, float16 scales and minima; int16 activations
    INT4_A8 = 5  # the same bytes; activations of 8 bits, of 16 where they stand out: faster, less exact


class Epilogue(IntEnum):
    """What becomes of a product."""

    STORE = 0
    ADD = 1
    SWIGLU = 2


class NativeError(RuntimeError):
    """The library refused a call: shapes, formats or indices do not fit together (our fault, never a request's)."""


class Weight(ctypes.Structure):
    """BBWeight."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("data_bytes", ctypes.c_int64),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("gate_up", ctypes.c_int32),
    )


class Batch(ctypes.Structure):
    """BBBatch."""

    _fields_ = (
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("table_width", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("wanted", ctypes.c_void_p),
        ("num_wanted", ctypes.c_int32),
    )


class Cache(ctypes.Structure):
    """BBCache."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("data_bytes", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("num_blocks", ctypes.c_int32),
        ("format", ctypes.c_int32),
    )


class Attention(ctypes.Structure):
    """BBAttention."""

    _fields_ = (
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("norm_eps", ctypes.c_float),
        ("cos_sin", ctypes.c_void_p),
        ("max_positions", ctypes.c_int32),
    )


class Layer(ctypes.Structure):
    """BBLayer."""

    _fields_ = (
        ("input_norm", ctypes.c_void_p),
        ("post_attention_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("qkv", Weight),
        ("o", Weight),
        ("gate_up", Weight),
        ("down", Weight),
        ("cache", Cache),
        ("attention", Attention),
    )


_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "bb_isa": (ctypes.c_char_p, ()),
    "bb_error": (ctypes.c_char_p, ()),
    "bb_set_num_threads": (_I, (_I,)),
    "bb_num_threads": (_I, ()),
    "bb_packed_bytes": (_L, (_P,)),
    "bb_pack_floats": (_I, (_P, _I, _L, _P, _P, _L)),
    "bb_pack_codes": (_I, (_P, _P, _P, _P, _P, _L)),
    "bb_unpack_rows": (_I, (_P, _P, _I, _P)),
    "bb_linear": (_I, (_P, _L, _P, _F, _P, _I, _P, _L, _I)),
    "bb_attend": (_I, (_P, _P, _P, _P, _P, _P, _P)),
    "bb_decode": (_I, (_P, _I, _P, _I, _P, _F)),
    "bb_measure": (_I, (_P, _L, _I, _P)),
    "bb_op_seconds": (None, (_P,)),
    "bb_linear_argmax": (_I, (_P, _L, _P, _F, _P, _I, _P)),
    "bb_draw": (_I, (_P, _I, _I, _P, _P, _P, _P, _P, _P)),
    "bb_penalise": (_I, (_P, _I, _I, _P, _P, _P, _P, _P, _P)),
}


class Library:
    """The loaded library; methods mirror abi.h and raise NativeError with its message."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path))
        version = self._dll.bb_abi_version()
        if version != ABI_VERSION:
            raise ConfigError(
                f"{path} speaks version {version} of the kernel interface, this engine {ABI_VERSION}: rebuild it"
            )
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._dll, name)
            function.restype, function.argtypes = result, arguments
        # A short call keeps the interpreter's lock: it would be given to a thread that holds it for longer.
        self._unpack_few_rows = ctypes.PyDLL(str(path)).bb_unpack_rows
        self._unpack_few_rows.restype, self._unpack_few_rows.argtypes = _SIGNATURES["bb_unpack_rows"]
        self._unpack_rows = self._dll.bb_unpack_rows
        self._linear, self._attend = self._dll.bb_linear, self._dll.bb_attend
        self._decode = self._dll.bb_decode

    @property
    def isa(self) -> str:
        """Name of the instruction set that this build uses."""
        return str(self._dll.bb_isa().decode())

    @property
    def num_threads(self) -> int:
        """Threads of the team, the calling one included."""
        return int(self._dll.bb_num_threads())

    def set_num_threads(self, threads: int | None) -> None:
        """Size of the team; None: one thread for each core that the process may use."""
        self._check(self._dll.bb_set_num_threads(threads or 0))

    def packed_bytes(self, shape: Weight) -> int:
        """Bytes that a weight of this n, k, format and gate_up packs to."""
        size = int(self._dll.bb_packed_bytes(ctypes.addressof(shape)))
        self._check(size < 0)
        return size

    def pack_floats(
        self, source: int, source_type: int, row_stride: int, shape: Weight, out: int, out_bytes: int
    ) -> None:
        """Pack a float matrix (source_type: a float `Format`), quantizing if the shape's format says so."""
        self._check(self._dll.bb_pack_floats(source, source_type, row_stride, ctypes.addressof(shape), out, out_bytes))

    def pack_codes(self, codes: int, scales: int, minima: int | None, shape: Weight, out: int, out_bytes: int) -> None:
        """Pack finished int8 codes[n, k] with float16 scales (and minima) [n, k / 32]."""
        self._check(self._dll.bb_pack_codes(codes, scales, minima, ctypes.addressof(shape), out, out_bytes))

    def unpack_rows(self, weight: int, ids: int, count: int, out: int) -> None:
        """Rows of a packed weight as float32 [count, k]; ids are int64."""
        unpack = self._unpack_few_rows if count <= SHORT_LOOK_UP else self._unpack_rows
        self._check(unpack(weight, ids, count, out))

    def linear(
        self, x: int, ldx: int, norm: int | None, eps: float, weight: int, rows: int, y: int, ldy: int, epilogue: int
    ) -> None:
        """y (op)= rms_norm(x) W^T + bias."""
        if self._linear(x, ldx, norm, eps, weight, rows, y, ldy, epilogue):
            self._check(1)

    def attend(
        self, qkv: int, cache: int, batch: int, attention: int, q_norm: int | None, k_norm: int | None, out: int
    ) -> None:
        """Norm, rotation and KV write of the step's tokens, then attention over the cache; changes qkv."""
        if self._attend(qkv, cache, batch, attention, q_norm, k_norm, out):
            self._check(1)

    def decode(self, hidden: int, hidden_size: int, layers: int, num_layers: int, batch: int, eps: float) -> None:
        """All decoder layers over hidden[tokens, hidden_size], in place."""
        if self._decode(hidden, hidden_size, layers, num_layers, batch, eps):
            self._check(1)

    def op_seconds(self) -> dict[str, float]:
        """Seconds that `decode` spent in each kind of op since the last call of this."""
        seconds = (ctypes.c_double * len(STACK_OPS))()
        self._dll.bb_op_seconds(ctypes.addressof(seconds))
        return dict(zip(STACK_OPS, seconds, strict=True))

    def linear_argmax(self, x: int, ldx: int, norm: int | None, eps: float, weight: int, rows: int, out: int) -> None:
        """int64 channel of the largest output of each row of rms_norm(x) W^T + bias, the lowest of equals."""
        self._check(self._dll.bb_linear_argmax(x, ldx, norm, eps, weight, rows, out))

    def draw(
        self,
        logits: int,
        rows: int,
        vocab: int,
        temperature: int,
        top_k: int,
        top_p: int,
        log_min_p: int,
        keys: int,
        out: int,
    ) -> None:
        """int64 token of each row of processed logits; the arrays are those of `sample.rows.DrawRows`."""
        self._check(self._dll.bb_draw(logits, rows, vocab, temperature, top_k, top_p, log_min_p, keys, out))

    def penalise(
        self,
        logits: int,
        rows: int,
        vocab: int,
        starts: int,
        ids: int,
        counts: int,
        repetition: int,
        frequency: int,
        presence: int,
    ) -> None:
        """Penalties on logits in place; the arrays are those of `sample.rows.SeenTokens`."""
        arrays = (starts, ids, counts, repetition, frequency, presence)
        self._check(self._dll.bb_penalise(logits, rows, vocab, *arrays))

    def measure(self, data: int, count: int, repeats: int) -> tuple[float, float, float, float]:
        """Best rates of the machine a second: bytes read from float data[count], float, int16 and int8 operations."""
        rates = (ctypes.c_double * 4)()
        self._check(self._dll.bb_measure(data, count, repeats, ctypes.addressof(rates)))
        read, fma, int16, int8 = rates
        return read, fma, int16, int8

    def _check(self, code: int) -> None:
        if code:
            raise NativeError(self._dll.bb_error().decode())


@cache
def load_library(isa_name: str | None = None) -> Library:
    """The best build that is there and runs on this CPU, or the named one. Raises ConfigError where there is none."""
    for isa in isas():
        if isa_name in (None, isa.name) and runs_here(isa) and library_path(isa).exists():
            return Library(library_path(isa))
    known = next((isa for isa in isas() if isa.name == isa_name), None)
    if known and not runs_here(known):
        missing = " ".join(sorted(known.features - cpu_features()))
        reason = f"this CPU lacks {missing}" if missing else "the kernel grants this process no tile registers"
        raise ConfigError(f"build {isa_name!r} of the CPU kernels cannot run here: {reason}")
    wanted = f"build {isa_name!r} of the CPU kernels" if isa_name else "CPU kernels"
    raise ConfigError(f"{wanted} not found for this machine: run python -m engine.kernels.native.build")
