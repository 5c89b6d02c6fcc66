"""`breadbox bench accuracy`: the figures of a comparison, and the command over baked folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from appliance.bench.accuracy import Accuracy
from appliance.bench.command import run_bench
from appliance.errors import SettingsError


def test_the_reference_agrees_with_itself() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 11))
    accuracy = Accuracy("same")
    accuracy.add(logits, logits + 3.0, [0, 1, 2, 3, 4])  # a constant is no error
    assert (accuracy.top1, accuracy.num_positions) == (1.0, 5)
    assert accuracy.kl == pytest.approx(0, abs=1e-12)
    assert accuracy.max_logit_error == pytest.approx(0, abs=1e-12)


def test_figures_are_those_of_their_definitions() -> None:
    accuracy = Accuracy("other")
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    accuracy.add(np.log(p)[None], np.log(q)[None], [1])
    assert accuracy.top1 == 0
    assert accuracy.kl == pytest.approx(float((p * np.log(p / q)).sum()))
    assert accuracy.perplexity == pytest.approx(1 / q[1])
    assert accuracy.max_logit_error == pytest.approx(np.log(2))
    assert accuracy.mean_logit_error == pytest.approx(2 / 3 * np.log(2))


def test_a_folder_beside_itself(shipped_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "accuracy.json"
    words = [str(shipped_model), str(shipped_model), "--num-texts", "2", "--text-len", "9", "--max-model-len", "64"]
    assert run_bench(["accuracy", *words, "--output-json", str(written)]) == 0
    assert "16 positions" in capsys.readouterr().out
    first, second = json.loads(written.read_text())["models"]
    assert first == second | {"kl_nats": first["kl_nats"]}


def test_one_model_is_nothing_to_compare(shipped_model: Path) -> None:
    with pytest.raises(SettingsError, match="at least one model to compare"):
        run_bench(["accuracy", str(shipped_model)])
    with pytest.raises(SettingsError, match="there is no more text"):
        run_bench(["accuracy", str(shipped_model), str(shipped_model), "--num-texts", "99999"])
