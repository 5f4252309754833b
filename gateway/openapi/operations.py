"""Every route of the public API, by hand: what it is for, what it takes, what it answers.

`tests/gateway/test_openapi.py` holds this table against the one in `app`, so that neither has a route alone.
Refuses to know: schemas (`document`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.api import refused
from gateway.api.cancelling import CancelRequest
from gateway.api.messages.schema import CountRequest, MessagesRequest
from gateway.api.registered import documents, templates
from gateway.api.responses.schema import ResponsesRequest
from gateway.api.schema_chat import ChatRequest
from gateway.api.schema_completions import CompletionRequest
from gateway.api.schema_counting import DetokenizeRequest, TokenizeOptions, TokenizeRequest
from gateway.openapi import answers, views


class Tag(StrEnum):
    ANSWERS = "Answers"
    TOKENS = "Tokens"
    MODELS = "Models"
    CALLER = "Caller"
    TEXTS = "Registered texts"
    SERVER = "Server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`does` is a line.  `body`: the types of which one is taken.  `told`: those of which one is answered; str: plain
    text.  `streams`: it may answer server-sent events.  `refuses` beyond what every one of its kind does; `errors` are
    the types of refusals."""

    method: str
    path: str
    tag: Tag
    id: str
    does: str
    told: tuple[Any, ...]
    body: tuple[Any, ...] = ()
    query: tuple[str, ...] = ()
    streams: str = ""
    open: bool = False
    refuses: tuple[int, ...] = ()
    errors: tuple[Any, ...] = (answers.Error,)
    example: dict[str, Any] | None = None

    @property
    def changes(self) -> bool:
        return self.method != "GET"


_HELLO = [{"role": "user", "content": "Hello"}]
_PAGE = ("limit", "after")
_CHUNKS = (
    "With `stream: true`: a chunk in each event, `data: {…}`; comments while it waits (`: status queued 3 4000`); the "
    "reason of the end in the last chunk of a choice; `data: [DONE]` at the end. A fault after the first byte is an event "
    'with `"error"` and no finish reason.'
)
_EVENTS = (
    "With `stream: true`: events named by their `type`, with rising `sequence_number`, the last of them `response.completed`, "
    "`response.incomplete` (of one that was cancelled, too) or `response.failed`."
)
_BLOCKS = (
    "With `stream: true`: `message_start`, the content blocks (`content_block_start`, `content_block_delta`, "
    "`content_block_stop`), `message_delta`, `message_stop`; `ping` while it waits. A fault after the first byte is an "
    "event `error`."
)


def _asks(path: str, id: str, does: str, **fields: Any) -> Operation:  # noqa: A002 — OpenAPI's word
    return Operation(method="POST", path=path, tag=Tag.ANSWERS, id=id, does=does, **fields)


_ANSWERS = (
    _asks(
        "/v1/chat/completions",
        "createChatCompletion",
        "Answer a conversation.",
        body=(ChatRequest,),
        told=(answers.ChatCompletion,),
        streams=_CHUNKS,
        example={"messages": _HELLO},
    ),
    _asks(
        "/v1/completions",
        "createCompletion",
        "Continue a text, or tokens.",
        body=(CompletionRequest,),
        told=(answers.Completion,),
        streams=_CHUNKS,
        example={"prompt": "Hello", "max_tokens": 16},
    ),
    _asks(
        "/v1/responses",
        "createResponse",
        "Answer items, in OpenAI's newer form.",
        body=(ResponsesRequest,),
        told=(answers.Response,),
        streams=_EVENTS,
        example={"input": "Hello"},
    ),
    _asks(
        "/v1/messages",
        "createMessage",
        "Answer a conversation, in Anthropic's form.",
        body=(MessagesRequest,),
        told=(answers.MessageAnswer,),
        streams=_BLOCKS,
        errors=(answers.MessagesError,),
        example={"max_tokens": 64, "messages": _HELLO},
    ),
    Operation(
        method="POST",
        path="/v1/requests/cancel",
        tag=Tag.CALLER,
        id="cancelRequest",
        does="Stop a request of one's own that runs, by its `Idempotency-Key`.",
        body=(CancelRequest,),
        told=(views.Cancelled,),
    ),
)
_STORED = (
    Operation(
        method="GET",
        path="/v1/responses/{id}",
        tag=Tag.ANSWERS,
        id="retrieveResponse",
        does="A stored response of yours; made in the background with `stream: true`, its events again.",
        told=(answers.Response,),
        query=("stream", "starting_after"),
        streams=_EVENTS,
        refuses=(404, 409),
    ),
    Operation(
        method="GET",
        path="/v1/responses/{id}/input_items",
        tag=Tag.ANSWERS,
        id="listResponseInputItems",
        does="What it was asked, and what came before in its conversation.",
        told=(answers.ResponseItems,),
        query=(*_PAGE, "order"),
        refuses=(404, 409),
    ),
    Operation(
        method="POST",
        path="/v1/responses/{id}/cancel",
        tag=Tag.ANSWERS,
        id="cancelResponse",
        does="End a response that is made in the background.",
        told=(answers.Response,),
        refuses=(404, 409),
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{id}",
        tag=Tag.ANSWERS,
        id="deleteResponse",
        does="Delete a stored response.",
        told=(views.Deleted,),
        refuses=(404,),
    ),
)
_TOKENS = (
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        tag=Tag.TOKENS,
        id="countMessageTokens",
        does="How many tokens `/v1/messages` would bill as input. Draws from the rates.",
        body=(CountRequest,),
        told=(answers.InputTokens,),
        errors=(answers.MessagesError,),
        example={"messages": _HELLO},
    ),
    Operation(
        method="POST",
        path="/v1/tokenize",
        tag=Tag.TOKENS,
        id="tokenize",
        does="The tokens of a text, or of a conversation as a chat reads it. Draws from the rates.",
        body=(TokenizeRequest, (ChatRequest, TokenizeOptions)),
        told=(answers.Tokens,),
        example={"prompt": "Hello"},
    ),
    Operation(
        method="POST",
        path="/v1/detokenize",
        tag=Tag.TOKENS,
        id="detokenize",
        does="The text of tokens. Draws from the rates.",
        body=(DetokenizeRequest,),
        told=(answers.Prompt,),
        example={"tokens": [1, 2, 3]},
    ),
)


def _gets(path: str, tag: Tag, id: str, does: str, *told: Any, **fields: Any) -> Operation:  # noqa: A002
    return Operation(method="GET", path=path, tag=tag, id=id, does=does, told=told, **fields)


_EITHER = (answers.Error, answers.MessagesError)
_READING = (
    _gets(
        "/v1/models",
        Tag.MODELS,
        "listModels",
        "The models that you may use, and how much of each; in Anthropic's form for who sends `anthropic-version`.",
        views.Models,
        views.MessagesModels,
        errors=_EITHER,
    ),
    _gets(
        "/v1/models/{id}",
        Tag.MODELS,
        "retrieveModel",
        "One of them. Its name may hold slashes.",
        views.Model,
        views.MessagesModel,
        refuses=(404,),
        errors=_EITHER,
    ),
    _gets("/v1/me", Tag.CALLER, "me", "Who you are, what you may use, and what is left.", views.Me),
    _gets(
        "/v1/requests/{id}",
        Tag.CALLER,
        "explainRequest",
        "How a request of yours went, and what it cost.",
        views.Explanation,
        refuses=(404, 410),
    ),
    _gets("/health", Tag.SERVER, "health", "The process answers.", views.Health, open=True),
    _gets(
        "/ready",
        Tag.SERVER,
        "ready",
        "It would serve a request now.",
        views.Ready,
        open=True,
        errors=(views.Ready, answers.Error),
    ),
    _gets("/version", Tag.SERVER, "version", "Which Lockgate this is.", views.Version),
)


def _registered(kind: str, one: Any, many: Any, create: Any, change: Any) -> tuple[Operation, ...]:
    base, name = f"/v1/{kind}s", kind.title()

    def at(method: str, path: str, id: str, does: str, *told: Any, **fields: Any) -> Operation:  # noqa: A002
        missing = () if path == base else (404,)
        return Operation(
            method=method,
            path=path,
            tag=Tag.TEXTS,
            id=id,
            does=does,
            told=told,
            refuses=missing,
            **fields,
        )

    return (
        at(
            "GET",
            base,
            f"list{name}s",
            f"Each {kind} that you may see, newest first.",
            many,
            query=_PAGE,
        ),
        at("POST", base, f"create{name}", f"Register a {kind}.", one, body=(create,)),
        at("GET", base + "/{id}", f"retrieve{name}", f"A {kind}, without its text.", one),
        at(
            "PATCH",
            base + "/{id}",
            f"change{name}",
            f"Change a {kind}: what is given.",
            one,
            body=(change,),
        ),
        at("DELETE", base + "/{id}", f"delete{name}", f"Delete a {kind}.", views.Deleted),
        at("GET", base + "/{id}/content", f"read{name}", f"The text of a {kind}.", str),
    )


_TEXTS = (
    *_registered(
        "document", views.Document, views.Documents, documents.NewDocument, documents.Change
    ),
    Operation(
        method="PUT",
        path="/v1/documents/{id}/acl",
        tag=Tag.TEXTS,
        id="setDocumentReaders",
        does="Say who may read a document, in place of who might.",
        body=(documents.Relisted,),
        told=(views.Document,),
        refuses=(404,),
    ),
    *_registered(
        "template",
        views.Template,
        views.Templates,
        templates.NewTemplate,
        templates.NewTemplate,
    ),
)

OPERATIONS: tuple[Operation, ...] = (*_ANSWERS, *_STORED, *_TOKENS, *_READING, *_TEXTS)

REFUSED: Mapping[Any, Collection[str]] = {
    ChatRequest: refused.CHAT,
    CompletionRequest: refused.COMPLETION,
    ResponsesRequest: refused.RESPONSES,
    MessagesRequest: refused.MESSAGES,
}
"""Fields that a type reads, since others of its kind have them, and that are refused where it is asked for."""
