"""A real engine process over a baked model: ``python -m tests.model.served SOCKET MODEL RANKS``, on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.server import serve


def main(argv: Sequence[str]) -> int:
    """Serve one request at a time."""
    socket_path, model_path, size = argv
    return serve(
        EngineConfig(
            model_path=Path(model_path),
            socket_path=Path(socket_path),
            device="cpu",
            tensor_parallel_size=int(size),
            num_threads=1,
            num_gpu_blocks_override=64,
            max_num_seqs=1,
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
