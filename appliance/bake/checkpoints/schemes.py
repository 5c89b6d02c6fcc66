"""config.json's quantization_config: what is supported, and the refusal of everything else, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.errors import BakeError

SUPPORTED = (
    "awq (gemm, 4 bits), gptq (4 or 8 bits), fp8 (e4m3 by tensor, channel or block), compressed-tensors "
    "(pack-quantized with 4 or 8 bits, int-quantized with 8 bits, float-quantized with 8 bits)"
)
_TENSORS_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")


@dataclass(frozen=True, slots=True)
class Scheme:
    """A supported quantization. Which layers have it the tensors themselves say."""

    method: str  # awq, gptq, fp8, compressed-tensors
    bits: int | None = None  # awq and gptq
    zero_offset: int = 0  # what is missing from stored zeros: 1 in gptq's first format
    block: tuple[int, int] | None = None  # output and input channels that share a float8 scale


def read_scheme(config: dict[str, Any]) -> Scheme | None:
    """The scheme of a config.json, None where the weights are plain. Raises BakeError that names what is missing."""
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return None
    if not isinstance(found, dict):
        raise BakeError(f"config.json: quantization_config must be an object, it is {found!r}")
    method = str(found.get("quant_method") or _unnamed(found)).lower()
    reader = _READERS.get(method)
    if reader is None:
        raise _unsupported(method)
    return reader(found)


def _unnamed(found: dict[str, Any]) -> str:
    return "bitsandbytes" if "load_in_4bit" in found or "load_in_8bit" in found else "of no named method"


def _unsupported(what: str) -> BakeError:
    return BakeError(
        f"config.json: quantization {what} is not supported; supported are {SUPPORTED}. Bake the unquantized model"
    )


def _awq(found: dict[str, Any]) -> Scheme:
    version = str(found.get("version") or "gemm").lower()
    if version != "gemm":
        raise _unsupported(f"awq with version {version}")
    return Scheme("awq", bits=_bits(found, "awq", (4,)))


def _gptq(found: dict[str, Any]) -> Scheme:
    layout = "marlin" if found.get("is_marlin_format") else str(found.get("checkpoint_format") or "gptq").lower()
    if layout not in ("gptq", "gptq_v2"):
        raise _unsupported(f"gptq with checkpoint_format {layout}")
    return Scheme("gptq", bits=_bits(found, "gptq", (4, 8)), zero_offset=1 if layout == "gptq" else 0)


def _fp8(found: dict[str, Any]) -> Scheme:
    kind = str(found.get("fmt") or "e4m3").lower()
    if kind not in ("e4m3", "float8_e4m3fn"):
        raise _unsupported(f"fp8 with fmt {kind}")
    return Scheme("fp8", block=_block(found.get("weight_block_size")))


def _compressed_tensors(found: dict[str, Any]) -> Scheme:
    layout = str(found.get("format") or "unknown")
    if layout not in _TENSORS_FORMATS:
        raise _unsupported(f"compressed-tensors with format {layout}")
    sparsity = str((found.get("sparsity_config") or {}).get("format") or "dense")
    if sparsity != "dense":
        raise _unsupported(f"compressed-tensors with sparsity {sparsity}")
    if (found.get("transform_config") or {}).get("config_groups"):
        raise _unsupported("compressed-tensors with transform_config")
    if str(found.get("quantization_status") or "compressed") != "compressed":
        raise _unsupported(f"compressed-tensors with quantization_status {found['quantization_status']}")
    blocks = [_weights(group) for group in (found.get("config_groups") or {}).values()]
    return Scheme("compressed-tensors", block=next((block for block in blocks if block), None))


def _weights(group: dict[str, Any]) -> tuple[int, int] | None:
    """Check one group of layers; the block that shares a scale, if it has such blocks."""
    if group.get("format") not in (None, *_TENSORS_FORMATS):
        raise _unsupported(f"compressed-tensors with format {group['format']}")
    weights = group.get("weights")
    if not weights:
        raise _unsupported("compressed-tensors without quantized weights")
    kind, bits = str(weights.get("type") or "int"), weights.get("num_bits")
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise _unsupported(f"compressed-tensors with {kind} weights of {bits} bits")
    return _block(weights.get("block_structure")) if weights.get("strategy") == "block" else None


def _bits(found: dict[str, Any], method: str, supported: tuple[int, ...]) -> int:
    bits = found.get("bits", found.get("w_bit"))
    if bits not in supported:
        raise _unsupported(f"{method} without its bits" if bits is None else f"{method} with {bits} bits")
    return int(bits)


def _block(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(n, int) and n > 0 for n in value):
        raise BakeError(f"config.json: the block of float8 weights must be two positive integers, it is {value!r}")
    return value[0], value[1]


_READERS = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "compressed-tensors": _compressed_tensors}
