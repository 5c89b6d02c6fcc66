"""Models compute with ops of the catalogue and nothing else: what torch does beside them only moves values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import EngineConfig
from engine.kernels import CATALOGUE, Ops, resolve_ops
from engine.layers.build import Build
from engine.models import ARCHITECTURES
from engine.models.config import load_model_config
from engine.models.loader import MappedWeights, make_model
from engine.runner.inputs import make_arrays, place_inputs
from engine.runner.load_plan import make_plan
from engine.step import StepInput, StepRow
from tests.model.driver import SAMPLING
from tests.tiny_models import TinyModel

CPU = torch.device("cpu")
MOVES = {"index_select", "to", "_to_copy"}  # rows are picked, dtypes changed
WATCHED = ("llama-tied-biased", "mistral-window", "qwen2-window", "qwen3-tied-biased")


class WatchedOps(TorchDispatchMode):
    """Notes every torch function that is called while none of the catalogue's ops runs."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: set[str] = set()
        self.called: set[str] = set()
        self._is_inside = False

    def watched(self, ops: Ops) -> Ops:
        return dataclasses.replace(ops, **{name: self._wrap(name, getattr(ops, name)) for name in CATALOGUE})

    def _wrap(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.called.add(name)
            self._is_inside = True
            try:
                return op(*args)
            finally:
                self._is_inside = False

        return run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._is_inside:
            self.outside.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WATCHED)
def test_a_forward_pass_is_ops_of_the_catalogue(name: str, tiny: Callable[[str], TinyModel]) -> None:
    baked = tiny(name).baked
    config = EngineConfig(model_path=baked, socket_path=baked, device="cpu", max_model_len=64)
    plan, ops = make_plan(config, torch.float32, "reference"), WatchedOps()
    weights = MappedWeights(baked / "model.safetensors")
    table = list(range(4))
    prefill = StepRow("a", list(range(20)), [], 0, 20, table, SAMPLING, samples=True)
    decode = StepRow("b", [5], [], 0, 1, [4], SAMPLING, samples=True)
    inputs = place_inputs(make_arrays(StepInput([prefill, decode]), config.block_size), config.block_size, CPU)
    kv_cache = plan.make_kv_cache(8)
    with torch.inference_mode():
        model = make_model(plan.model, Build(ops.watched(plan.ops), weights, plan.dtype, CPU), 64)
        with ops:
            x = model.forward(inputs.token_ids, inputs.batch, kv_cache)
            model.compute_logits(x, inputs.sample_rows)
    assert ops.outside <= MOVES
    assert {"embedding", "norm_linear", "norm_linear_swiglu", "linear_add_", "attend"} <= ops.called


def test_every_architecture_is_watched(tiny: Callable[[str], TinyModel]) -> None:
    assert {load_model_config(tiny(name).baked).architecture for name in WATCHED} == ARCHITECTURES.keys()


def test_the_watch_sees_an_op_that_goes_past_the_catalogue() -> None:
    ops, x = WatchedOps(), torch.ones(2, 4)
    watched = ops.watched(resolve_ops("reference"))
    weight = watched.prepare_linear(torch.ones(3, 4), None, torch.float32, CPU)
    with ops:
        watched.norm_linear(x, None, 0.0, weight)
        assert ops.outside == set()
        torch.softmax(x @ x.t(), -1)
    assert ops.outside >= {"mm", "_softmax"}
