"""The whole stack in one call: the same bits as op by op, for every kind of layer; what does not fit is refused."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from engine.kernels.attend.cpu import attention_struct, batch_struct, make_kv_cache
from engine.kernels.batch import AttentionSpec, StepBatch
from engine.kernels.native.library import Epilogue, Format, Layer, Library, NativeError
from engine.kernels.native.packing import PackedWeight, pack
from tests.kernel.batches import CPU, make_batch, make_cos_sin, make_tables, num_blocks
from tests.kernel.native.test_linear import run

HIDDEN, INNER, HEADS, KV_HEADS, DIM, LAYERS = 72, 100, 4, 2, 32, 3
EPS = 1e-5


@dataclass
class Model:
    """Random layers with biases, q/k norms and a window in each other layer."""

    format: Format

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        qkv = (HEADS + 2 * KV_HEADS) * DIM
        sizes = [(qkv, HIDDEN), (HIDDEN, HEADS * DIM), (2 * INNER, HIDDEN), (HIDDEN, INNER)]
        self.weights = [[self._weight(n, k, i == 2) for i, (n, k) in enumerate(sizes)] for _ in range(LAYERS)]
        self.norms = [[torch.rand(size) + 0.5 for size in (HIDDEN, HIDDEN, DIM, DIM)] for _ in range(LAYERS)]
        windows = [16, None, 40]
        self.specs = [AttentionSpec(HEADS, KV_HEADS, DIM, DIM**-0.5, window, EPS) for window in windows]
        self.cos_sin = make_cos_sin(512, DIM)

    def _weight(self, n: int, k: int, is_gate_up: bool) -> PackedWeight:
        return pack(torch.randn(n, k) * k**-0.5, self.format, bias=torch.randn(n) * 0.1, is_gate_up=is_gate_up)

    def start(self, blocks: int, dtype: torch.dtype) -> None:
        self.caches = make_kv_cache(blocks, 16, KV_HEADS, DIM, LAYERS, dtype, CPU)
        self.attentions = [attention_struct(spec, self.cos_sin) for spec in self.specs]
        self.layers = (Layer * LAYERS)(
            *(
                Layer(*(norm.data_ptr() for norm in norms), *(w.struct for w in weights), cache.struct, attention)
                for norms, weights, cache, attention in zip(
                    self.norms, self.weights, self.caches, self.attentions, strict=True
                )
            )
        )

    def decode(self, library: Library, x: Tensor, batch: StepBatch) -> Tensor:
        x, struct = x.clone(), batch_struct(batch)
        library.decode(x.data_ptr(), x.shape[1], ctypes.addressof(self.layers), LAYERS, ctypes.addressof(struct), EPS)
        return x

    def op_by_op(self, library: Library, x: Tensor, batch: StepBatch) -> Tensor:
        x, struct = x.clone(), batch_struct(batch)
        for (qkv, o, gate_up, down), norms, cache, attention in zip(
            self.weights, self.norms, self.caches, self.attentions, strict=True
        ):
            projected = run(library, qkv, x, norms[0])
            attended = torch.empty(x.shape[0], HEADS * DIM)
            structs = [ctypes.addressof(struct) for struct in (cache.struct, struct, attention)]
            head_norms = [norm.data_ptr() for norm in norms[2:]]
            library.attend(projected.data_ptr(), *structs, *head_norms, attended.data_ptr())
            run(library, o, attended, None, Epilogue.ADD, x)
            run(library, down, run(library, gate_up, x, norms[1], Epilogue.SWIGLU), None, Epilogue.ADD, x)
        return x


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int8], ids=["kv-float32", "kv-bfloat16", "kv-int8"]
)
def test_the_stack_is_the_same_bits_as_its_ops(library: Library, format: Format, dtype: torch.dtype) -> None:
    model = Model(format)
    tables = make_tables([90, 20, 300], 16)
    steps = [[(60, 60), (19, 19), (300, 300)], [(90, 30), (20, 1), (300, 1)]]
    inputs = [torch.randn(sum(new for _, new in rows), HIDDEN) for rows in steps]
    outputs = []
    for threads in (1, 3):
        library.set_num_threads(threads)
        for forward in (model.decode, model.op_by_op):
            model.start(num_blocks(tables), dtype)
            for rows, x in zip(steps, inputs, strict=True):
                out = forward(library, x, make_batch(rows, 16, tables))
            assert out.isfinite().all()
            outputs.append(out)
    for other in outputs[1:]:
        assert torch.equal(other, outputs[0])


@pytest.mark.parametrize("wanted", [[], [0], [59, 78, 378], [*range(60, 79)], [*range(379)]], ids=len)
def test_wanted_tokens_are_the_same_bits_as_among_all(library: Library, wanted: list[int]) -> None:
    model, tables = Model(Format.INT4), make_tables([90, 20, 300], 16)
    x, more = torch.randn(379, HIDDEN), torch.randn(3, HIDDEN)
    batch = make_batch([(60, 60), (19, 19), (300, 300)], 16, tables)
    outputs = []
    for some in (None, torch.tensor(wanted, dtype=torch.int32)):
        model.start(num_blocks(tables), torch.float32)
        first = model.decode(library, x, replace(batch, wanted=some))
        # The caches are whole: what comes next finds everybody's keys and values.
        second = model.decode(library, more, make_batch([(61, 1), (20, 1), (301, 1)], 16, tables))
        outputs.append((first[wanted], second))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])


@pytest.mark.parametrize("wanted", [[3], [-1], [1, 1], [2, 1], [0, 1, 2, 2]], ids=str)
def test_wanted_tokens_that_are_none_are_refused(library: Library, wanted: list[int]) -> None:
    model = Model(Format.INT8)
    model.start(4, torch.float32)
    batch = replace(make_batch([(3, 3)], 16), wanted=torch.tensor(wanted, dtype=torch.int32))
    with pytest.raises(NativeError, match=r"wanted must be (ascending tokens|in 0 … num_tokens)"):
        model.decode(library, torch.zeros(3, HIDDEN), batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.layers[1].attention, "num_heads", 8), "heads must be the same in all layers"),
        (lambda m: setattr(m.layers[1].qkv, "n", 16), "weight must be as many bytes as its shape packs to"),
        (lambda m: setattr(m.layers[2], "input_norm", None), "input_norm must not be null"),
        (lambda m: setattr(m.layers[2].cache, "data", None), "cache and cos_sin must be of the same size"),
        (lambda m: setattr(m.layers[0].cache, "num_blocks", 9), "cache must be num_blocks blocks long"),
        (lambda m: setattr(m.layers[0].gate_up, "gate_up", 0), "must be as many bytes|gate_up must be 2 I channels"),
    ],
)
def test_layers_that_do_not_fit_are_refused(library: Library, change: object, message: str) -> None:
    model = Model(Format.INT8)
    model.start(4, torch.float32)
    change(model)  # type: ignore[operator]
    with pytest.raises(NativeError, match=message):
        model.decode(library, torch.zeros(3, HIDDEN), make_batch([(3, 3)], 16))


def test_a_hidden_size_of_another_model_is_refused(library: Library) -> None:
    model = Model(Format.INT8)
    model.start(4, torch.float32)
    with pytest.raises(NativeError, match="hidden_size must be the inputs of qkv and gate_up, not 64"):
        model.decode(library, torch.zeros(3, 64), make_batch([(3, 3)], 16))
