"""POST /tokenize and /detokenize, GET /tokenizer_info: the tokenizer alone, no engine involved."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from appliance.api.conversation.prompt import make_chat_prompt
from appliance.api.conversation.schemas import PromptFields
from appliance.api.event_loop import off_loop
from appliance.api.fields import MAX_INT64, Integer, RequestFields
from appliance.api.json_response import json_response
from appliance.api.openapi import describe_body
from appliance.api.request_body import json_body, read_object, validate
from appliance.api.served_model import ServedModel
from appliance.api.state import get_state
from appliance.api.token_fields import check_token_ids

router = APIRouter(tags=["tokenizer"])
info_router = APIRouter(tags=["tokenizer"])


class TokenizeTextRequest(RequestFields):
    """A text to tokenize."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(PromptFields):
    """A conversation to render and tokenize."""

    model: str | None = None
    return_token_strs: bool = False


class DetokenizeRequest(RequestFields):
    """Token ids to turn into text."""

    tokens: list[Annotated[Integer, Field(ge=0, le=MAX_INT64)]]
    model: str | None = None


@router.post("/tokenize", openapi_extra=describe_body(TokenizeTextRequest, TokenizeChatRequest))
async def tokenize(request: Request, body: Annotated[dict[str, Any], Depends(read_object)]) -> Response:
    """Token ids of a text or a conversation; not bounded by the context."""
    state = get_state(request)
    models = state.models
    if "messages" in body:
        chat = validate(TokenizeChatRequest, body)
        model = models.get(chat.model)
        prompt = await make_chat_prompt(chat, model, state, is_bounded=False)
        return await _print_tokens(model, prompt.token_ids, chat.return_token_strs)
    text = validate(TokenizeTextRequest, body)
    model = models.get(text.model)
    size = len(text.prompt)
    token_ids = await off_loop(size, lambda: model.tokenizer.encode(text.prompt, text.add_special_tokens))
    return await _print_tokens(model, token_ids, text.return_token_strs)


async def _print_tokens(model: ServedModel, token_ids: list[int], with_strings: bool) -> Response:
    def spell() -> list[str] | None:
        return [model.tokenizer.token_str(token) for token in token_ids] if with_strings else None

    return json_response(
        {
            "count": len(token_ids),
            "max_model_len": model.max_model_len,
            "tokens": token_ids,
            "token_strs": await off_loop(len(token_ids), spell),
        }
    )


@router.post("/detokenize", openapi_extra=describe_body(DetokenizeRequest))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
) -> Response:
    """The text of token ids, control tokens spelled out."""
    model = get_state(request).models.get(body.model)
    check_token_ids("tokens", body.tokens, model.tokenizer.vocab_size)
    text = await off_loop(len(body.tokens), lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response({"prompt": text})


@info_router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """The first model's tokenizer configuration and the chat template in use."""
    model = get_state(request).models.get(None)
    template = model.chat_template.source if model.chat_template else None
    info = {"tokenizer_class": "PreTrainedTokenizerFast", **model.baked.tokenizer_config, "chat_template": template}
    return json_response(info)
