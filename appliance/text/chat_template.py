"""A model's chat template: a conversation becomes the prompt's text, as Hugging Face renders it.

What the caller wrote is marked first (`control_text`), so that `Tokenizer.encode_chat` makes control tokens only of
what the template wrote; the conversation is shaped to what the template takes (`chat_messages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from jinja2 import nodes

from appliance.errors import InvalidRequestError
from appliance.text.chat_messages import Message, shape_messages
from appliance.text.control_text import CUT, LookalikeMarker
from appliance.text.template_abilities import find_abilities
from appliance.text.template_environment import (
    TemplateEnvironment,
    TemplateTimeoutError,
    compile_template,
    render_template,
)

RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)


class Tokens(Protocol):
    """What a template is told of a `Tokenizer`."""

    @property
    def special_tokens(self) -> Iterable[str]:
        """Spellings that only a template may make control tokens of."""

    @property
    def added_tokens(self) -> Iterable[str]:
        """All spellings outside the ordinary vocabulary."""


class ChatTemplate:
    """One template, tried out when it is made. ApplianceError where its syntax is wrong.

    Without a ``tokenizer`` only the control tokens named in ``tokenizer_config`` are kept apart from user text.
    """

    def __init__(self, source: str, tokenizer_config: Mapping[str, Any], tokenizer: Tokens | None = None) -> None:
        self.source = source
        self._template = compile_template(source)
        self._constants = _named_tokens(tokenizer_config)
        special = set(tokenizer.special_tokens if tokenizer else _special_tokens(tokenizer_config))
        written = {token for token in (tokenizer.added_tokens if tokenizer else ()) if token in _literal_text(source)}
        self._model_marker = LookalikeMarker(special)
        self._marker = LookalikeMarker(special | written)
        self.abilities = find_abilities(self._try)

    @property
    def content_format(self) -> str:
        """How the template takes a message's content: "string" or "openai" (a list of parts)."""
        return "openai" if self.abilities.needs_typed_content else "string"

    def render(
        self,
        /,  # a variable may have any name, "self" too
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for `Tokenizer.encode_chat`. ``kwargs`` are further variables of the template.

        ``continue_final_message`` ends the prompt right after the last message's content. InvalidRequestError where
        the template cannot render this.
        """
        tools = tools or None
        marked = [self._mark(message) for message in messages]
        marked_tools = self._marker.mark(tools)
        shaped = shape_messages(marked, self.abilities, None if self.abilities.shows_tools else marked_tools)
        if continue_final_message:
            shaped = _with_cut(shaped)
        variables = {
            **self._marker.mark(kwargs),
            "messages": shaped,
            "tools": marked_tools if self.abilities.shows_tools else None,
            "documents": self._marker.mark(documents),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        rendered = render_template(self._template, self._constants | variables)
        return _cut(rendered) if continue_final_message else rendered

    def _mark(self, message: Message) -> Message:
        # A template takes the model's own words apart at its markers (</think>), so these stay bare there.
        marker = self._model_marker if message.get("role") == "assistant" else self._marker
        marked: Message = marker.mark(message)
        return marked

    def _try(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str | None:
        variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        try:
            return render_template(self._template, self._constants | variables)
        except TemplateTimeoutError:
            raise  # it would take as long with the next conversation
        except InvalidRequestError:
            return None


def _with_cut(messages: list[Message]) -> list[Message]:
    if not messages:
        raise InvalidRequestError("continue_final_message needs a message to continue", param="continue_final_message")
    *before, last = messages
    content = last["content"]
    mark = CUT + " "  # the blank is gone afterwards where the template trims
    if isinstance(content, list):
        return [*before, {**last, "content": [{**content[0], "text": content[0]["text"] + mark}]}]
    return [*before, {**last, "content": (content or "") + mark}]


def _cut(rendered: str) -> str:
    head, found, tail = rendered.rpartition(CUT)
    if not found:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not write the final message's content",
            param="continue_final_message",
        )
    return head if tail.startswith(" ") else head.rstrip()


def _named_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """The variables bos_token, eos_token, … a template may use."""
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    values = {name: _spelling(config.get(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _special_tokens(config: Mapping[str, Any]) -> list[str]:
    decoder = config.get("added_tokens_decoder") or {}
    added = [token["content"] for token in decoder.values() if token.get("special")]
    others = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    return [*_named_tokens(config).values(), *added, *filter(None, map(_spelling, others))]


def _spelling(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def _literal_text(source: str) -> str:
    """All text the template itself can write."""
    tree = TemplateEnvironment().parse(source)
    text = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join([*text, *constants])
