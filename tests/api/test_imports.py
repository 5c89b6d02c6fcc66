"""What an API process must not load, and how long it may take to import."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, sys, time
started = time.process_time()
import appliance.api.app
seconds = time.process_time() - started
heavy = sorted({"torch", "triton", "numpy", "transformers", "safetensors", "gguf"} & set(sys.modules))
print(json.dumps({"seconds": seconds, "heavy": heavy}))
"""


def test_the_api_loads_nothing_heavy() -> None:
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", PROBE])) for _ in range(3)]
    assert {tuple(run["heavy"]) for run in runs} == {()}
    # About 0.35 s of a core, 1.1 s of a slow one; the best of three, so that a busy machine does not count.
    assert min(run["seconds"] for run in runs) < 2.0
