"""Token ids to text, one token at a time, whole characters only.

The deltas and `flush` concatenate to what `Tokenizer.decode` gives for all ids at once. Stop strings are
`stop_matcher`'s job.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Incremental decoding of one choice.

    ``is_text_start`` is False where text stands before the first token (a prompt), whose blank is then kept.
    ``kept_special_ids`` are shown although special tokens are skipped: the markers that a parser needs to see.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        is_text_start: bool = True,
        kept_special_ids: Collection[int] = (),
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_token_ids.difference(kept_special_ids) if skip_special_tokens else frozenset()
        self._decoder = _Utf8Decoder("replace")
        self._leading_spaces = tokenizer.leading_spaces if is_text_start else 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; the bytes of an unfinished character wait for the next one."""
        if token_id in self._skipped:
            return ""
        data = self._token_bytes(token_id)
        is_easy = data.isascii() and not self._decoder.buffer  # nearly always, and far less work
        text = data.decode("ascii") if is_easy else self._decoder.decode(data)
        return self._strip_start(text) if self._leading_spaces and text else text

    def flush(self) -> str:
        """The end of the text: what is left of an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", True)

    def _strip_start(self, text: str) -> str:
        stripped = text[: self._leading_spaces].lstrip(" ") + text[self._leading_spaces :]
        taken = len(text) - len(stripped)
        self._leading_spaces = 0 if stripped else self._leading_spaces - taken
        return stripped
