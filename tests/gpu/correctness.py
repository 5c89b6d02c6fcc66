"""Every kernel on the card against the reference on the CPU: the catalogue's shapes, then variants of attention."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from engine.kernels import CATALOGUE, PARTS, SHAPES, make_shapes
from engine.kernels.attend.shapes import AttendShape
from engine.kernels.chip import chip_of
from tests.gpu.report import Report
from tests.kernel.op_runs import run_op

FLOAT32 = {"atol": 1e-3, "rtol": 1e-3}
BFLOAT16 = {"atol": 6e-2, "rtol": 6e-2}
Case = tuple[str, str, Any, torch.dtype, torch.dtype | None]


def check_kernels(report: Report, budget_s: float) -> None:
    """As many cases as fit the time, spread over the ops; prints how many held."""
    deadline, device = time.monotonic() + budget_s, torch.device("cuda", 0)
    cases = list(_cases(device))
    held = done = 0
    for op, implementation, shape, dtype, kv_dtype in cases:
        if time.monotonic() > deadline:
            break
        done += 1
        try:
            expected = run_op(op, "reference", shape, torch.device("cpu"), dtype, kv_dtype)
            found = run_op(op, implementation, shape, device, dtype, kv_dtype)
            limits = FLOAT32 if dtype is torch.float32 else BFLOAT16
            torch.testing.assert_close(found, expected, check_device=False, **limits)
            held += 1
        except Exception as error:  # one kernel's fault must not hide the others'
            report.fail(
                f"{implementation} {op} {shape}", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            )
    print(f"correct against the reference: {held} of {done} cases ({len(cases)} in all)", flush=True)


def _cases(device: torch.device) -> Iterator[Case]:
    """Interleaved by op, so that a cut at the end costs each op some shapes rather than some ops all."""
    by_op = [list(_cases_of(op)) for op in SHAPES]
    by_op.append(list(_attention_cases(device)))
    for place in range(max(map(len, by_op))):
        yield from (cases[place] for cases in by_op if place < len(cases))


def _cases_of(op: str) -> Iterator[Case]:
    for shape in make_shapes(op):
        for implementation in (CATALOGUE | PARTS)[op]:
            if implementation.startswith("cuda"):
                yield op, implementation, shape, torch.float32, None


def _attention_cases(device: torch.device) -> Iterator[Case]:
    kv_dtypes = [torch.bfloat16, torch.int8] + ([torch.float8_e4m3fn] if chip_of(device).has_fp8 else [])
    for head_dim in (64, 80, 96, 128, 256):
        for num_heads, num_kv_heads in ((4, 4), (8, 2), (7, 1)):
            rows = ((150, 70), (200, 1), (18, 18), (33, 1))
            shape = AttendShape(rows, num_heads, num_kv_heads, head_dim, has_qk_norm=True)
            decode = AttendShape(((250, 1), (17, 1)), num_heads, num_kv_heads, head_dim, sliding_window=100)
            for kv_dtype in kv_dtypes:
                yield "attend", "cuda", shape, torch.bfloat16, kv_dtype
                yield "attend", "cuda", decode, torch.bfloat16, kv_dtype
