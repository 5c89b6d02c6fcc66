"""The command: ceilings, correctness, kernels, models; exit status 0 if nothing failed, 2 without a GPU."""

from __future__ import annotations

import argparse
import sys
import time

import torch


def main() -> int:
    """Run what was asked for, within the time."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--only", choices=("correctness", "kernels", "models"), help="one part")
    parser.add_argument("--correctness-s", type=float, default=200.0, help="seconds that correctness may take")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: no CUDA device")
        return 2
    # Imported here: without a GPU nobody needs Triton to be told so.
    import triton

    from tests.gpu.correctness import check_kernels
    from tests.gpu.kernels import time_kernels
    from tests.gpu.models import time_models
    from tests.gpu.report import Report
    from tests.gpu.timing import measure_ceilings

    start = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    report = Report(measure_ceilings())
    report.start()
    parts = {
        "kernels": lambda: time_kernels(report),
        "models": lambda: time_models(report),
        "correctness": lambda: check_kernels(report, options.correctness_s),
    }
    for name, run in parts.items():
        if options.only in (None, name):
            run()
            print(f"{name}: {time.monotonic() - start:.0f} s since the start", flush=True)
    print(f"gpu-check: {len(report.failures)} failed, {time.monotonic() - start:.0f} s")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
