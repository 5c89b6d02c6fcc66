"""What every kind of source is turned into before baking: names and weights as Hugging Face has them.

`hf_folder` and `gguf_source` make a `Source`; `fuse` and `writer` consume it and know nothing of file formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from appliance.bake.block_codes import Codes

Array: TypeAlias = NDArray[Any]
Progress: TypeAlias = Callable[[str, float], None]


class Fit(NamedTuple):
    """The packed format that holds a quantized tensor's codes exactly, or why none does."""

    format: str | None
    reason: str = ""


class Weights(Protocol):
    """Random access to a model's tensors, rows at a time, so that memory stays bounded."""

    def names(self) -> Collection[str]:
        """Hugging Face names of all tensors ("model.layers.0.self_attn.q_proj.weight")."""

    def dtype(self, name: str) -> str:
        """The dtype that `read` gives: "float32", "float16" or "bfloat16"."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""

    def read(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop) along the first axis; bfloat16 comes as its bits in uint16."""

    def own_format(self, name: str) -> Fit | None:
        """How bake keeps a tensor of a quantized checkpoint as it is; None where floats are what is asked for."""

    def codes(self, name: str, format: str) -> Codes | None:
        """The tensor's own codes where it is quantized such that `format` ("int8", "int4", …) holds them exactly."""


@dataclass(frozen=True)
class Provenance:
    """Where a model comes from; goes into the manifest."""

    kind: str
    id: str
    revision: str | None = None
    sha256: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """The manifest's `source`."""
        return {"kind": self.kind, "id": self.id, "revision": self.revision, "sha256": self.sha256}


@dataclass(frozen=True)
class Source:
    """A model ready to be baked. `config` is normalised (see `model_config`); `licence` is an SPDX-like id."""

    name: str
    provenance: Provenance
    config: dict[str, Any]
    weights: Weights
    tokenizer_json: str
    tokenizer_config: dict[str, Any]
    chat_template: str | None
    generation_config: dict[str, Any]
    licence: str | None
    licence_text: bytes | None


def quiet(_phase: str, _fraction: float) -> None:
    """The progress callback of callers that don't care."""


def as_array(buffer: Any, dtype: Any, shape: tuple[int, ...], offset: int) -> Array:
    """A read-only view of `shape` items at `offset` bytes of a buffer."""
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)
