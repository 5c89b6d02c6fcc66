"""Real English that every Python carries with it: its own documentation. The words of prompts that need no dataset."""

from __future__ import annotations

from functools import cache


@cache
def corpus_words() -> list[str]:
    """About 60,000 words, in reading order."""
    from pydoc_data import topics

    return " ".join(text for _, text in sorted(topics.topics.items())).split()
