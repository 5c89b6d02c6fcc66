"""Picking tokens, in every build: the same as in torch, whatever is beside a row, and for infinities and NaN."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from engine.kernels.linear import cpu
from engine.kernels.native.library import Format, Library, NativeError
from engine.kernels.native.packing import pack
from engine.kernels.sample import reference
from engine.kernels.sample.rows import DrawRows
from tests.kernel.native.test_linear import run
from tests.kernel.op_runs import make_draw_rows

CPU = torch.device("cpu")
KINDS = [  # temperature, top_k, top_p, min_p
    *((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.2, 0, 1.0, 0.0), (1e-5, 0, 1.0, 0.0), (50.0, 0, 1.0, 0.0)),
    *((1.0, 1, 1.0, 0.0), (1.0, 50, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 0, 0.999, 0.0), (1.0, 0, 1e-6, 0.0)),
    *((1.0, 0, 1.0, 0.01), (0.7, 40, 0.95, 0.01), (1.0, 10**6, 1.0, 0.0), (3.0, 300, 0.5, 0.0), (1.0, 0, 0.5, 1.0)),
]


def draw(library: Library, logits: Tensor, rows: DrawRows) -> Tensor:
    out = torch.full((logits.shape[0],), -1, dtype=torch.int64)
    arrays = (rows.temperature, rows.top_k, rows.top_p, rows.log_min_p, rows.keys)
    library.draw(logits.data_ptr(), *logits.shape, *(array.data_ptr() for array in arrays), out.data_ptr())
    return out


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 1000, 49152])
def test_the_likeliest(library: Library, vocab: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, vocab)
    logits[1] = 3.0  # all equal: the first
    logits[2, vocab // 2 :] = 9.0
    logits[3] = float("-inf")
    logits[4, 0] = float("nan")
    found = draw(library, logits, make_draw_rows(((0.0, 0, 1.0, 0.0),) * 5, CPU))
    assert torch.equal(found, torch.where(logits.isnan(), float("-inf"), logits).argmax(-1))


@pytest.mark.parametrize("spread", [0.001, 1.0, 4.0, 40.0])
def test_draws_are_those_of_torch(library: Library, spread: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(len(KINDS), 20011) * spread
    rows = make_draw_rows(tuple(KINDS), CPU)
    for position in range(8):
        keys = rows.keys + position
        moved = dataclasses.replace(rows, keys=keys)
        assert torch.equal(draw(library, logits, moved), reference.draw_tokens(logits, moved))


def test_a_row_does_not_depend_on_the_others(library: Library) -> None:
    torch.manual_seed(2)
    logits = torch.randn(len(KINDS), 5003) * 3
    rows = make_draw_rows(tuple(KINDS), CPU)
    together = draw(library, logits, rows)
    for index in range(len(KINDS)):
        fields = ("temperature", "top_k", "top_p", "log_min_p", "keys")
        one = dataclasses.replace(rows, **{name: getattr(rows, name)[index : index + 1].clone() for name in fields})
        assert draw(library, logits[index : index + 1].clone(), one).item() == together[index]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_overflow_yields_some_token(library: Library, value: float) -> None:
    for where in (slice(10, 11), slice(None)):
        logits = torch.zeros(len(KINDS), 50)
        logits[:, where] = value
        found = draw(library, logits, make_draw_rows(tuple(KINDS), CPU))
        assert ((found >= 0) & (found < 50)).all()
        if math.isnan(value) and where != slice(None):
            assert (found != 10).all()


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize(("n", "k"), [(49, 40), (320, 64), (1000, 72)])
def test_the_largest_output_is_that_of_the_product(library: Library, format: Format, n: int, k: int) -> None:
    torch.manual_seed(3)
    weight = torch.randn(n, k) * 0.1
    weight[n // 2 :: 7] = weight[3]  # ties: the lowest
    packed = pack(weight, format, bias=torch.zeros(n) - 5)
    x, norm = torch.randn(203, k), torch.rand(k)
    x[::5] = weight[3] * 9
    x[7] = float("nan")
    outputs = run(library, packed, x, norm)
    outputs[7] = 0.0
    for threads in (1, 3):
        library.set_num_threads(threads)
        for rows in (1, 2, 20, 203):
            out = torch.full((rows,), -1, dtype=torch.int64)
            library.linear_argmax(x.data_ptr(), k, norm.data_ptr(), 1e-5, packed.address, rows, out.data_ptr())
            assert torch.equal(out, outputs[:rows].argmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_largest_of_rounded_outputs_is_that_of_the_logits(dtype: torch.dtype) -> None:
    """Two outputs may be equal once they are rounded: the lower one is picked with or without the logits."""
    torch.manual_seed(4)
    weight = cpu.prepare_linear(torch.randn(4000, 64), None, dtype, CPU)
    x, norm = torch.randn(300, 64).to(dtype), torch.ones(64, dtype=dtype)
    outputs = cpu.norm_linear(x, norm, 1e-5, weight).float()
    best = outputs.max(-1, keepdim=True).values
    assert ((outputs == best).sum(-1) > 1).any()
    assert torch.equal(cpu.norm_linear_argmax(x, norm, 1e-5, weight), (outputs == best).int().argmax(-1))


def test_seen_tokens_outside_the_vocabulary_are_refused(library: Library) -> None:
    logits, ones = torch.zeros(1, 10), torch.ones(1)
    starts, ids = torch.tensor([0, 1]).int(), torch.tensor([10]).int()
    arrays = (starts, ids, ids, ones, ones, ones)
    with pytest.raises(NativeError, match="ids must be within the vocabulary, not 10"):
        library.penalise(logits.data_ptr(), 1, 10, *(array.data_ptr() for array in arrays))
