"""The items of /v1/responses: what goes in and what comes out, in one form that is read, answered and kept.

An answer's output is the next request's input, so both are the same few kinds: messages, calls of functions, and
what those gave.  Reasoning of other models is accepted and dropped, as no model here reads it back; items of hosted
tools are refused by name.
Refuses to know: HTTP, who asks, where items are kept.  Source: API.md §1 (Responses); openai-python's types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.refused import unsupported
from gateway.api.schema import whole
from gateway.errors import ApiError, invalid
from gateway.quoting import fit
from gateway.text.templates import ChatMessage
from gateway.tools.calls import ToolCall

OUR_PREFIX = "resp_"
_ITEM_ID = re.compile(r"(?:msg|fc|fco)_([0-9a-f]{24})(?:in)?[0-9a-f]{4}", re.ASCII)
ITEMS_MAX = 2048
PARTS_MAX = 1024
CALL_ID_CHARS_MAX = 128
_ROLES = frozenset({"system", "developer", "user", "assistant"})
_TEXTS = frozenset({"input_text", "output_text", "text"})
_MEDIA = {
    "input_image": "Images are",
    "input_audio": "Audio is",
    "input_video": "Video is",
    "refusal": "Parts of type refusal are",
}


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: tuple[Any, ...] = ()


class InputFile(msgspec.Struct, frozen=True, tag_field="type", tag="input_file"):
    """A registered document."""

    file_id: str


Part = InputText | OutputText | InputFile


class Message(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    role: str
    content: tuple[Part, ...]
    id: str = ""
    status: str = "completed"


class Call(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str = ""
    status: str = "completed"


class Result(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str
    id: str = ""
    status: str = "completed"


class Reference(msgspec.Struct, frozen=True, tag_field="type", tag="item_reference"):
    """An item of a stored response, named in a request."""

    id: str


Item = Message | Call | Result
Given = Item | Reference


class GivenPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    file_id: Annotated[str, Meta(max_length=64)] | None = None
    file_data: Any = None
    file_url: Any = None


GivenParts = Annotated[list[GivenPart], Meta(max_length=PARTS_MAX)]


class GivenItem(msgspec.Struct, frozen=True):
    """As a client writes one; what its type does not need is not looked at."""

    type: str | None = None
    id: Annotated[str, Meta(max_length=128)] | None = None
    role: str | None = None
    content: str | GivenParts | None = None
    call_id: Annotated[str, Meta(min_length=1, max_length=CALL_ID_CHARS_MAX)] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    arguments: str | None = None
    output: str | GivenParts | None = None


GivenInput = str | Annotated[list[GivenItem], Meta(min_length=1, max_length=ITEMS_MAX)]


def items_of(given: GivenInput) -> tuple[Given, ...]:
    """Raises ApiError 400, naming the place."""
    if isinstance(given, str):
        return (Message("user", (InputText(whole(given, "input")),)),)
    found = (_item(one, f"input[{i}]") for i, one in enumerate(given))
    return tuple(item for item in found if item is not None)


def _item(given: GivenItem, at: str) -> Given | None:
    """None for what is dropped."""
    match given.type:
        case None | "message":
            return _message(given, at)
        case "function_call":
            return Call(
                _text(given.call_id, f"{at}.call_id"),
                _text(given.name, f"{at}.name"),
                _text(given.arguments, f"{at}.arguments"),
            )
        case "function_call_output":
            return Result(_text(given.call_id, f"{at}.call_id"), _output(given.output, at))
        case "reasoning":
            return None
        case "item_reference":
            return Reference(_text(given.id, f"{at}.id"))
        case other:
            raise unsupported(
                f"{at}.type: '{fit(other)}' is not supported here. Send items of type message, "
                "function_call and function_call_output.",
                param=f"{at}.type",
            )


def _message(given: GivenItem, at: str) -> Message:
    role = given.role
    if role not in _ROLES:
        raise invalid(
            f"{at}.role: expected system, developer, user or assistant.", param=f"{at}.role"
        )
    kind = OutputText if role == "assistant" else InputText
    if given.content is None:
        raise _required(f"{at}.content")
    if isinstance(given.content, str):
        return Message(role, (kind(whole(given.content, f"{at}.content")),))
    parts: list[Part] = []
    for i, part in enumerate(given.content):
        where = f"{at}.content[{i}]"
        if part.type == "input_file" and role != "assistant":
            parts.append(_file(part, where))
        else:
            parts.append(kind(_part_text(part, where)))
    return Message(role, tuple(parts))


def _output(given: str | Sequence[GivenPart] | None, at: str) -> str:
    at = f"{at}.output"
    if given is None or isinstance(given, str):
        return _text(given, at)
    return "\n".join(_part_text(part, f"{at}[{i}]") for i, part in enumerate(given))


def _part_text(part: GivenPart, at: str) -> str:
    if part.type in _MEDIA:
        raise unsupported(
            f"{at}: {_MEDIA[part.type]} not supported here yet, and nothing is ever fetched from an "
            "address in a request. Send parts of type input_text.",
            param=at,
        )
    if part.type not in _TEXTS:
        raise invalid(f"{at}.type: expected input_text or output_text.", param=f"{at}.type")
    return _text(part.text, f"{at}.text")


def _file(part: GivenPart, at: str) -> InputFile:
    if not part.file_id or part.file_data is not None or part.file_url is not None:
        raise unsupported(
            f"{at}: expected the file_id of a registered document (POST /v1/documents), and nothing "
            "else: files are not read from a request, nor fetched from an address.",
            param=at,
        )
    return InputFile(whole(part.file_id, f"{at}.file_id"))


def _text(text: str | None, at: str) -> str:
    if text is None:
        raise _required(at)
    return whole(text, at)


def _required(at: str) -> ApiError:
    return invalid(f"{at}: this field is required.", param=at)


def told(items: Iterable[Item], response_id: str) -> tuple[Item, ...]:
    """What a response was asked, each item with an id of ours that names the response."""
    found: list[Item] = []
    for index, item in enumerate(items):
        kind = "msg" if isinstance(item, Message) else "fc" if isinstance(item, Call) else "fco"
        id_ = f"{kind}_{response_id.removeprefix(OUR_PREFIX)}in{index:04x}"
        found.append(msgspec.structs.replace(item, id=id_))
    return tuple(found)


def response_of(item_id: str) -> str | None:
    """The response whose item it is; None where it is no id of ours."""
    match = _ITEM_ID.fullmatch(item_id)
    return None if match is None else OUR_PREFIX + match[1]


def messages_of(items: Iterable[Item]) -> tuple[ChatMessage, ...]:
    """As a chat template reads them: an assistant's calls belong to what it said before them.
    Raises ApiError 400 where something answers a call that nobody made."""
    messages: list[ChatMessage] = []
    made: set[str] = set()
    for item in items:
        match item:
            case Message():
                messages.append(ChatMessage(item.role, text_of(item)))
            case Call():
                made.add(item.call_id)
                call = ToolCall(item.call_id, item.name, item.arguments)
                last = messages[-1] if messages else None
                if last is None or last.role != "assistant":
                    last = ChatMessage("assistant", "")
                else:
                    messages.pop()
                messages.append(replace(last, calls=(*last.calls, call)))
            case Result():
                if item.call_id not in made:
                    raise invalid(
                        f"input: no function_call with the call_id '{fit(item.call_id)}' comes before its "
                        "function_call_output.",
                        param="input",
                    )
                messages.append(ChatMessage("tool", item.output, call_id=item.call_id))
    return tuple(messages)


def text_of(message: Message) -> str:
    return "\n".join(part.text for part in message.content if not isinstance(part, InputFile))


def documents_of(items: Iterable[Item]) -> list[str]:
    """The registered documents that are named, in order."""
    return [
        part.file_id
        for item in items
        if isinstance(item, Message)
        for part in item.content
        if isinstance(part, InputFile)
    ]
