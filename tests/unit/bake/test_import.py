"""Importing the package must cost nothing: the command line does it for every command."""

from __future__ import annotations

import subprocess
import sys


def test_importing_bake_loads_nothing_heavy() -> None:
    program = (
        "import sys, appliance.bake; heavy = {'torch', 'numpy', 'gguf', 'huggingface_hub', 'tokenizers'};"
        "sys.exit(str(sorted(heavy & sys.modules.keys())) if heavy & sys.modules.keys() else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_baking_needs_no_torch() -> None:
    program = "import sys, appliance.bake.baker; sys.exit('torch' in sys.modules or 'huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
