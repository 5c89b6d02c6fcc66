"""Text to token ids and back, over the `tokenizers` library; exact bytes of each token.

Chat text goes through `encode_chat`, where a look-alike of a control token stays text (see `control_text`). Decoding
a stream is `detokenizer`'s job, rendering a conversation `chat_template`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import tokenizers

from appliance.baked_model import BakedModel
from appliance.errors import ApplianceError
from appliance.text.control_text import control_name, has_marks, number_controls
from appliance.text.detokenizer import Detokenizer
from appliance.text.token_bytes import PieceDecoder


class Tokenizer:
    """One model's tokenizer. Cheap to share between requests; not tied to a thread.

    ``config`` is tokenizer_config.json: bos_token, eos_token, add_bos_token, add_eos_token.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._piece_bytes = PieceDecoder(_state(backend.decoder))
        self._bytes: dict[int, bytes] = {}
        self.special_token_ids = frozenset(id for id, token in self._added.items() if token.special)
        self.bos_token_id = self._config_id(config, "bos_token")
        self.eos_token_id = self._config_id(config, "eos_token")
        self._prefix, self._suffix = self._affixes(config)

    @classmethod
    def load(cls, baked: BakedModel) -> Tokenizer:
        """The tokenizer of a baked model."""
        try:
            backend = tokenizers.Tokenizer.from_file(str(baked.tokenizer_path))
        except Exception as error:  # the library raises plain Exception
            raise ApplianceError(f"{baked.tokenizer_path} cannot be read: {error}") from None
        return cls(backend, baked.tokenizer_config)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def leading_spaces(self) -> int:
        """How many blanks at the start of a decoded text are SentencePiece's and not the text's."""
        return self._piece_bytes.leading_spaces

    @property
    def special_tokens(self) -> list[str]:
        """The spelling of the tokens that decoding may skip."""
        return [token.content for token in self._added.values() if token.special]

    @property
    def added_tokens(self) -> list[str]:
        """The spelling of all tokens that are matched in text before anything else, special or not."""
        return [token.content for token in self._added.values()]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """The ids of a text, control tokens in it included; with BOS (and EOS) as the model's configuration says."""
        return self._with_affixes(_ids(self._backend, text), add_special_tokens)

    def encode_chat(self, rendered: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of what `ChatTemplate.render` gave: control tokens only where the template wrote them."""
        if not has_marks(rendered):
            return self.encode(rendered, add_special_tokens)
        ids = _ids(self._numbered_backend, self._number_controls(rendered))
        return self._with_affixes([id for part in ids for id in self._control_ids(part)], add_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids; bytes that are no UTF-8 become U+FFFD."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def token_bytes(self, id: int) -> bytes:
        """The exact bytes of one token, special ones spelled out; empty for an id outside the vocabulary."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._piece_bytes(self.token_str(id))
        return known

    def token_str(self, id: int) -> str:
        """The token as the vocabulary spells it (``Ġred``, ``▁red``, ``<0x0A>``); empty outside the vocabulary."""
        try:
            return self._backend.id_to_token(id) or ""
        except OverflowError:
            return ""

    def token_id(self, piece: str) -> int | None:
        """The id of a vocabulary piece or control token."""
        id: int | None = self._backend.token_to_id(piece)
        return id

    @cached_property
    def _controls(self) -> list[tuple[int, tokenizers.AddedToken]]:
        return [(id, token) for id, token in sorted(self._added.items()) if token.content.strip()]

    @cached_property
    def _number_controls(self) -> Callable[[str], str]:
        return number_controls([token.content for _, token in self._controls])

    @cached_property
    def _numbered_backend(self) -> tokenizers.Tokenizer:
        """The same model (shared, not copied) with every control token renamed to a name no user can write."""
        numbered = tokenizers.Tokenizer(self._backend.model)
        numbered.normalizer = self._backend.normalizer
        numbered.pre_tokenizer = self._backend.pre_tokenizer
        blanks = [token for token in self._added.values() if not token.content.strip()]
        numbered.add_tokens(blanks + [_renamed(token, n) for n, (_, token) in enumerate(self._controls)])
        return numbered

    @cached_property
    def _numbered_ids(self) -> dict[int, int]:
        """Renamed control token → the model's id."""
        names = {control_name(n): id for n, (id, _) in enumerate(self._controls)}
        names |= {token.content: id for id, token in self._added.items() if not token.content.strip()}
        return {new: id for name, id in names.items() if (new := self._numbered_backend.token_to_id(name)) is not None}

    def _control_ids(self, id: int) -> list[int]:
        known = self._numbered_ids.get(id)
        if known is not None:
            return [known]
        if id not in self.special_token_ids:
            return [id]
        spelled = self.token_str(id)  # the vocabulary itself makes the token from plain text: split it
        return [part for piece in (spelled[:1], spelled[1:]) for part in _ids(self._numbered_backend, piece)]

    def _with_affixes(self, ids: list[int], add_special_tokens: bool) -> list[int]:
        if not add_special_tokens:
            return ids
        prefix = [] if self._prefix and ids[: len(self._prefix)] == self._prefix else self._prefix
        return [*prefix, *ids, *self._suffix]

    def _affixes(self, config: dict[str, Any]) -> tuple[list[int], list[int]]:
        """What stands before and after a text: as tokenizer.json's template has it unless the config says more."""
        bare, dressed = (self._backend.encode("a", add_special_tokens=flag).ids for flag in (False, True))
        start = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
        prefix, suffix = dressed[:start], dressed[start + len(bare) :]
        return (
            _adjusted(prefix, self.bos_token_id, config.get("add_bos_token")),
            _adjusted(suffix, self.eos_token_id, config.get("add_eos_token")),
        )

    def _config_id(self, config: dict[str, Any], name: str) -> int | None:
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        return self.token_id(content) if isinstance(content, str) else None


def _ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    # A batch, because `encode` keeps the interpreter locked: a long text in a thread would stop every stream.
    try:
        [encoding] = backend.encode_batch_fast([text], add_special_tokens=False)
    except (UnicodeEncodeError, TypeError):  # lone surrogates, which JSON can spell and UTF-8 cannot
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        [encoding] = backend.encode_batch_fast([whole], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _adjusted(affix: list[int], id: int | None, is_wanted: bool | None) -> list[int]:
    if is_wanted is None or id is None or is_wanted == (id in affix):
        return affix
    return [*affix, id] if is_wanted else [other for other in affix if other != id]


def _renamed(token: tokenizers.AddedToken, number: int) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        control_name(number),
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _state(decoder: Any) -> dict[str, Any] | None:
    if decoder is None:
        return None
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return state
