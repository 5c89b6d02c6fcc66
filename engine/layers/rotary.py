"""Rotary position embedding: the table of cosines and sines, in every scaling that a Llama-like model asks for.

Numerically Hugging Face's `modeling_rope_utils`, with one rule of our own for ``dynamic``: there the frequencies
depend on how long the sequence is at the time of the call, hence on how it was cut into calls. Here position p always
turns by the frequencies of a sequence of p + 1 tokens. That equals Hugging Face up to the model's own context (any
cut), and beyond it where tokens come one by one from there on; a prompt that is itself longer, taken whole, differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """config.json's rope_theta and rope_scaling."""

    theta: float
    head_dim: int
    max_position_embeddings: int
    rope_type: str = "default"
    scaling: dict[str, Any] = field(default_factory=dict)

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter of rope_scaling; ConfigError where it is missing and has no default."""
        value = self.scaling.get(name)
        if value is None:
            value = default
        if not isinstance(value, int | float):
            raise ConfigError(f"config.json: rope_scaling of type {self.rope_type} needs a number {name}, not {value}")
        return float(value)

    @property
    def original_max_position_embeddings(self) -> float:
        """The context that the model was trained with, before scaling."""
        return self.number("original_max_position_embeddings", self.max_position_embeddings)


def make_cos_sin(rope: RopeConfig, length: int, device: torch.device) -> Tensor:
    """float32 [length, head_dim]: for each position head_dim / 2 cosines, then as many sines."""
    positions = torch.arange(length, dtype=torch.float32)
    if rope.rope_type == "dynamic":
        angles = _dynamic_angles(rope, positions)
        factor = 1.0
    else:
        frequencies, factor = _frequencies(rope)
        angles = positions[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1).mul_(factor).to(device)


def _frequencies(rope: RopeConfig) -> tuple[Tensor, float]:
    """Angle per position of each pair [head_dim / 2], and what cosines and sines are multiplied with."""
    base = _base_frequencies(rope)
    match rope.rope_type:
        case "default":
            return base, 1.0
        case "linear":
            return base / rope.number("factor"), 1.0
        case "llama3":
            return _llama3_frequencies(rope, base), 1.0
        case "yarn":
            return _yarn_frequencies(rope, base), _yarn_attention_factor(rope)
    raise ConfigError(
        f"config.json: rope_scaling type {rope.rope_type!r} is not supported "
        "(supported: default, linear, dynamic, llama3, yarn)"
    )


def _base_frequencies(rope: RopeConfig) -> Tensor:
    return 1.0 / rope.theta ** (torch.arange(0, rope.head_dim, 2).float() / rope.head_dim)


def _dynamic_angles(rope: RopeConfig, positions: Tensor) -> Tensor:
    factor, trained, dim = rope.number("factor"), rope.max_position_embeddings, rope.head_dim
    lengths = (positions + 1).clamp(min=trained).double()
    theta = rope.theta * (factor * lengths / trained - (factor - 1)) ** (dim / (dim - 2))  # [length]
    exponents = torch.arange(0, dim, 2).float() / dim
    return positions[:, None] * (1.0 / theta.float()[:, None] ** exponents)


def _llama3_frequencies(rope: RopeConfig, base: Tensor) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    factor, trained = rope.number("factor"), rope.original_max_position_embeddings
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    wavelength = 2 * math.pi / base
    blend = (trained / wavelength - low) / (high - low)
    blended = (1 - blend) * base / factor + blend * base
    stretched = torch.where(wavelength > trained / low, base / factor, blended)
    return torch.where(wavelength < trained / high, base, stretched)


def _yarn_frequencies(rope: RopeConfig, base: Tensor) -> Tensor:
    """YaRN (arXiv 2309.00071): interpolated where a pair turns less than beta_slow times over the trained context,
    kept where it turns more than beta_fast times, a ramp between."""
    low, high = _yarn_ramp(rope)
    ramp = ((torch.arange(rope.head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return base / _yarn_factor(rope) * ramp + base * (1 - ramp)


def _yarn_ramp(rope: RopeConfig) -> tuple[float, float]:
    def dimension_that_turns(times: float) -> float:
        trained = rope.original_max_position_embeddings
        return rope.head_dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = dimension_that_turns(rope.number("beta_fast", 32))
    high = dimension_that_turns(rope.number("beta_slow", 1))
    if rope.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_factor(rope: RopeConfig) -> float:
    return rope.number("factor", rope.max_position_embeddings / rope.original_max_position_embeddings)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.scaling.get("attention_factor") is not None:
        return rope.number("attention_factor")

    def magnitude(scale: float) -> float:
        factor = _yarn_factor(rope)
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if rope.scaling.get("mscale") and rope.scaling.get("mscale_all_dim"):
        return magnitude(rope.number("mscale")) / magnitude(rope.number("mscale_all_dim"))
    return magnitude(1.0)
