"""POST /v1/tokenize and /v1/detokenize: vLLM's requests.  Messages are read by `schema_chat`.

Refuses to know: the tokenizer.  Source: vLLM's API of these names; SECURITY.md A1, A8.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from gateway import strict_json
from gateway.api.refused import COMPLETION, refuse
from gateway.api.schema import TokenId, object_of, token_ids, whole
from gateway.errors import invalid

_Model = Annotated[str, Meta(min_length=1, max_length=256)]


class TokenizeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the fields of a chat."""

    return_token_strs: bool | None = None


class TokenizeRequest(TokenizeOptions, frozen=True, kw_only=True):
    """A text as `/v1/completions` reads it.  `add_special_tokens`: what the model puts before it, yes by default."""

    model: _Model
    prompt: str
    add_special_tokens: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: _Model
    tokens: list[TokenId]


T = TypeVar("T")


def parse_strings(body: object) -> bool:
    """Whether the text of each token is asked for.  Raises ApiError 400."""
    return bool(_shaped(body, TokenizeOptions).return_token_strs)


def parse_tokenize(body: object) -> tuple[str, bool]:
    """The text, and whether what the model puts before it is wanted.  Raises ApiError 400."""
    refuse(object_of(body), COMPLETION)
    request = _shaped(body, TokenizeRequest)
    return whole(request.prompt, "prompt"), request.add_special_tokens is not False


def parse_detokenize(body: object, *, vocab_size: int, most: int) -> tuple[int, ...]:
    """Raises ApiError 400, for more than `most` too."""
    tokens = _shaped(body, DetokenizeRequest).tokens
    if len(tokens) > most:
        raise invalid(
            f"tokens: these are {len(tokens)}, and the model's context has {most}. Send fewer.",
            param="tokens",
        )
    return token_ids(tokens, "tokens", vocab_size)


def _shaped(body: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(object_of(body), kind)
    except msgspec.ValidationError as error:
        raise strict_json.misfit(str(error), kind) from None
