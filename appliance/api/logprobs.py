"""Prints log-probabilities: chat's list of objects, completions' parallel lists, and prompt_logprobs.

JSON has no minus infinity, so what is less likely than e^-9999 is written as -9999.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.text.tokenizer import Tokenizer
from engine.messages import TokenLogprobs

FLOOR = -9999.0


@dataclass(frozen=True, slots=True)
class TokenPrinter:
    """Writes a token as text, or as ``token_id:N`` where that was asked for."""

    tokenizer: Tokenizer
    as_token_ids: bool = False

    def text(self, token_id: int) -> str:
        """The token alone; a part of a character shows as U+FFFD (its true bytes are in `chat_token`)."""
        if self.as_token_ids:
            return f"token_id:{token_id}"
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        """Chat's entry for one token."""
        raw = self.tokenizer.token_bytes(token_id)
        return {"token": self.text(token_id), "logprob": max(logprob, FLOOR), "bytes": list(raw)}


def chat_logprobs(printer: TokenPrinter, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """``{"content": [{token, logprob, bytes, top_logprobs}]}``."""
    content = []
    for token in tokens:
        entry = printer.chat_token(token.token_id, token.logprob)
        entry["top_logprobs"] = [printer.chat_token(*top) for top in token.top]
        content.append(entry)
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Completions' shape for one choice; offsets go on from chunk to chunk."""

    def __init__(self, printer: TokenPrinter) -> None:
        self._printer = printer
        self._offset = 0

    def print(self, tokens: Sequence[TokenLogprobs | None], token_ids: Sequence[int]) -> dict[str, Any]:
        """`token_ids` tells the token where there is no logprob: the first one of an echoed prompt."""
        printed: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token_id, token in zip(token_ids, tokens, strict=True):
            text = self._printer.text(token_id)
            printed["text_offset"].append(self._offset)
            printed["tokens"].append(text)
            printed["token_logprobs"].append(None if token is None else max(token.logprob, FLOOR))
            printed["top_logprobs"].append(None if token is None else self._top(token))
            self._offset += len(self._printer.tokenizer.token_bytes(token_id).decode("utf-8", "replace"))
        return printed

    def _top(self, token: TokenLogprobs) -> dict[str, float]:
        best = {self._printer.text(token_id): max(logprob, FLOOR) for token_id, logprob in reversed(token.top)}
        best.setdefault(self._printer.text(token.token_id), max(token.logprob, FLOOR))
        return dict(sorted(best.items(), key=lambda item: -item[1]))


def prompt_logprobs(
    printer: TokenPrinter, tokens: Sequence[TokenLogprobs | None]
) -> list[dict[str, dict[str, Any]] | None]:
    """One object a prompt token, keyed by token id: the likeliest ones and the actual one. The first is null."""
    return [None if token is None else _prompt_token(printer, token) for token in tokens]


def _prompt_token(printer: TokenPrinter, token: TokenLogprobs) -> dict[str, dict[str, Any]]:
    ranked = [(token.token_id, token.logprob, token.rank)]
    ranked += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(token.top, start=1)]
    return {
        str(token_id): {"logprob": max(logprob, FLOOR), "rank": rank, "decoded_token": printer.text(token_id)}
        for token_id, logprob, rank in reversed(ranked)
    }
