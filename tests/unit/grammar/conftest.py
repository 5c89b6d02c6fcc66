"""One engine over the default model's vocabulary for all tests that don't change it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.grammar.builders import Engine


@pytest.fixture(scope="session")
def engine(smollm2: Path) -> Engine:
    return Engine(smollm2)


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
