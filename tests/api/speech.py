"""An engine that says a given text, for tests of what is made of text."""

from __future__ import annotations

from typing import Any

from appliance.api.served_model import ServedModel
from tests.api.scripted_engine import EOS
from tests.fakes import Answer, FakeEngine


def engine_saying(model: ServedModel, *texts: str, **answer: Any) -> FakeEngine:
    """Says the texts one after the other, a request each, and the last one ever after; each ends with EOS."""
    answers = [Answer(token_ids=[*model.tokenizer.encode(text, False), EOS], **answer) for text in texts]
    engine = FakeEngine()
    engine.script = lambda request: answers[min(len(engine.requests), len(answers)) - 1]
    return engine
