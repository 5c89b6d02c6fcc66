"""From a vocabulary piece to the exact bytes it stands for, read off a tokenizer's decoder.

Covers byte-level alphabets (GPT-2, Llama 3, Qwen …), SentencePiece with byte fallback (Llama 2, Mistral, Gemma …) and
WordPiece. Joining the bytes of all tokens and stripping `PieceDecoder.leading_spaces` at the start is the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_Step = Callable[[str], str]


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: one printable character for each byte; the unprintable ones are shifted above 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


class PieceDecoder:
    """Piece → bytes. ``leading_spaces`` is how many blanks of the whole text's start are an artefact."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        self.leading_spaces = 0
        self._steps: list[_Step] = []
        self._alphabet: dict[str, int] | None = None
        self._has_byte_pieces = False
        self._add(decoder or {"type": "none"})

    def __call__(self, piece: str) -> bytes:
        """The bytes of one piece."""
        if self._has_byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(match.group(1))
        for step in self._steps:
            piece = step(piece)
        if self._alphabet is not None:
            try:
                return bytes([self._alphabet[character] for character in piece])
            except KeyError:  # an added token, which is spelled as it is
                pass
        return piece.encode("utf-8", "replace")

    def _add(self, decoder: dict[str, Any]) -> None:
        add = getattr(self, f"_add_{decoder['type'].lower()}", None)
        if add is not None:
            add(decoder)

    def _add_sequence(self, decoder: dict[str, Any]) -> None:
        for part in decoder["decoders"]:
            self._add(part)

    def _add_bytelevel(self, decoder: dict[str, Any]) -> None:
        self._alphabet = byte_alphabet()

    def _add_bytefallback(self, decoder: dict[str, Any]) -> None:
        self._has_byte_pieces = True

    def _add_replace(self, decoder: dict[str, Any]) -> None:
        pattern, content = decoder["pattern"], decoder["content"]
        if "String" in pattern:
            self._steps.append(lambda piece: piece.replace(pattern["String"], content))
        else:
            self._steps.append(lambda piece: re.sub(pattern["Regex"], lambda _: content, piece))

    def _add_strip(self, decoder: dict[str, Any]) -> None:
        if decoder.get("content") == " ":
            self.leading_spaces = int(decoder.get("start", 0))

    def _add_metaspace(self, decoder: dict[str, Any]) -> None:
        self._steps.append(lambda piece: piece.replace(decoder["replacement"], " "))
        scheme = decoder.get("prepend_scheme") or ("always" if decoder.get("add_prefix_space", True) else "never")
        self.leading_spaces = 0 if scheme == "never" else 1

    def _add_wordpiece(self, decoder: dict[str, Any]) -> None:
        prefix = decoder["prefix"]
        self._steps.append(lambda piece: piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}")
        self.leading_spaces = 1

    def _add_bpedecoder(self, decoder: dict[str, Any]) -> None:
        self._steps.append(lambda piece: piece.replace(decoder["suffix"], " "))
