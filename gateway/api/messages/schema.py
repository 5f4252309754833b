"""POST /v1/messages and what counts for it: Anthropic's request, read into a frozen `ChatJob`.

Refuses to know: the chat template (roles it lacks are its business), limits of a plan.
Source: Anthropic's Messages API; API.md §1 (Messages, minimum).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from gateway import strict_json
from gateway.api.messages.schema_tools import (
    TOOLS_MAX,
    MessagesTool,
    ToolChoice,
    ToolName,
    message_tools,
)
from gateway.api.refused import MESSAGES, refuse, unsupported
from gateway.api.schema import (
    STOPS_MAX,
    CommonRequest,
    Controls,
    Fraction,
    Label,
    Stop,
    TokenCount,
    controls,
    object_of,
    whole,
)
from gateway.api.schema_chat import MESSAGES_MAX, PARTS_MAX, ChatJob, documents_once
from gateway.api.structure import JsonSchema, ResponseFormat
from gateway.errors import ApiError, invalid
from gateway.references import References
from gateway.text.templates import ChatMessage
from gateway.tools.calls import ToolCall

_Id = Annotated[str, Meta(min_length=1, max_length=256)]


class TextBlock(msgspec.Struct, frozen=True):
    """Of a system prompt.  Its `cache_control` changes nothing: what is shared follows from rights."""

    text: str
    type: Literal["text"] = "text"


class Source(msgspec.Struct, frozen=True):
    type: str
    file_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class Citations(msgspec.Struct, frozen=True):
    enabled: bool | None = None


class Block(msgspec.Struct, frozen=True):
    """Text, a registered document, a call of a tool, or what a tool answered."""

    type: str
    text: str | None = None
    source: Source | None = None
    citations: Citations | None = None
    id: _Id | None = None
    name: ToolName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: _Id | None = None
    content: Any = None
    is_error: bool | None = None


class Message(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=PARTS_MAX)]


class Metadata(msgspec.Struct, frozen=True):
    user_id: Label | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: str


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to be read.  Unknown fields are ignored."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MESSAGES_MAX)]
    system: str | Annotated[list[TextBlock], Meta(max_length=PARTS_MAX)] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    max_tokens: TokenCount
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=STOPS_MAX)] | None = None
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def parse_messages(body: object, *, vocab_size: int) -> ChatJob:
    """Raises ApiError 400, naming `param`."""
    request = _shaped(body, MessagesRequest)
    common = CommonRequest(
        model=request.model,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences,
        stream=request.stream,
        user=None if request.metadata is None else request.metadata.user_id,
        service_tier={"auto": "auto", "standard_only": "default"}.get(request.service_tier or ""),  # type: ignore[arg-type]  # of both
        response_format=_form(request.output_config),
    )
    try:
        made = controls(
            common, max_tokens=request.max_tokens, top_logprobs=None, vocab_size=vocab_size
        )
    except ApiError as why:
        raise _named_here(why) from None
    if made.structure is not None:
        made = replace(made, structure=replace(made.structure, param="output_config"))
    return _job(request, made)


def parse_count(body: object, *, vocab_size: int) -> ChatJob:
    """The same conversation, to be counted.  Raises ApiError 400, naming `param`."""
    request = _shaped(body, CountRequest)
    common = CommonRequest(model=request.model)
    return _job(
        request, controls(common, max_tokens=None, top_logprobs=None, vocab_size=vocab_size)
    )


def _job(request: CountRequest, made: Controls) -> ChatJob:
    tools = message_tools(request.tools, request.tool_choice)
    read = _Reading()
    if request.system:
        read.messages.append(ChatMessage("system", _system(request.system)))
    for place, message in enumerate(_turns(request.messages)):
        read.turn(message, f"messages[{place}]")
    if request.messages[-1].role == "assistant":
        raise unsupported(
            "messages: the last one is the assistant's. Beginning an answer for the model is not supported here; "
            "end with a message of the user.",
            param="messages",
        )
    config = request.output_config
    effort = None if config is None else config.effort
    return ChatJob(
        made,
        tuple(read.messages),
        {} if effort is None else {"reasoning_effort": effort},
        References(documents_once(read.documents, "messages")),
        tools,
    )


Request = TypeVar("Request", bound=CountRequest)


def _shaped(body: object, kind: type[Request]) -> Request:
    refuse(object_of(body), MESSAGES)
    try:
        request = msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise strict_json.misfit(str(error), kind) from None
    whole(request.model, "model")
    if isinstance(request, MessagesRequest) and request.metadata is not None:
        whole(request.metadata.user_id or "", "metadata.user_id")
    if request.thinking is not None and request.thinking.type != "disabled":
        raise unsupported(
            "thinking: not supported here. Leave it out, or send type disabled.", param="thinking"
        )
    return request


_NAMES = {"stop": "stop_sequences", "response_format": "output_config.format"}


def _named_here(why: ApiError) -> ApiError:
    """By the name that the field has in this API."""
    named = _NAMES.get(why.param or "")
    if named is None:
        return why
    says = why.message.replace(why.param or "", named, 1)
    return invalid(says, param=named, code=why.code)


def _form(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    schema = JsonSchema(name="output", schema=config.format.schema)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _system(system: str | Sequence[TextBlock]) -> str:
    text = system if isinstance(system, str) else "\n".join(block.text for block in system)
    return whole(text, "system")


def _turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Each as a list of blocks, and what one role says twice in a row as one turn, as Anthropic reads it."""
    turn: Message | None = None
    for message in messages:
        content = message.content
        said = [Block("text", content)] if isinstance(content, str) else list(content)
        if turn is not None and turn.role == message.role:
            assert isinstance(turn.content, list)
            turn = Message(message.role, [*turn.content, *said])
            continue
        if turn is not None:
            yield turn
        turn = Message(message.role, said)
    if turn is not None:
        yield turn


@dataclass(slots=True)
class _Reading:
    """A conversation as it is read: turn by turn, with the calls that were made so far."""

    messages: list[ChatMessage] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)

    def turn(self, message: Message, param: str) -> None:
        assert not isinstance(message.content, str)
        texts: list[str] = []
        calls: list[ToolCall] = []
        answers: list[ChatMessage] = []
        for place, block in enumerate(message.content):
            at = f"{param}.content[{place}]"
            match block.type, message.role:
                case "text", _:
                    texts.append(whole(_needed(block.text, f"{at}.text"), at))
                case "document", "user":
                    self.documents.append(_document(block, at))
                case "tool_use", "assistant":
                    calls.append(_call(block, at))
                case "tool_result", "user":
                    answers.append(self._answer(block, at))
                case (("thinking" | "redacted_thinking"), "assistant"):
                    pass  # of another model, and of an earlier turn: no model is shown it again
                case kind, role:
                    raise _no_block(kind, role, at)
        self.messages += answers
        self.called.update(call.id for call in calls)
        if texts or calls or not answers:
            said = "\n".join(texts)  # as vLLM joins them
            self.messages.append(ChatMessage(message.role, said, calls=tuple(calls)))

    def _answer(self, block: Block, at: str) -> ChatMessage:
        of = _needed(block.tool_use_id, f"{at}.tool_use_id")
        if of not in self.called:
            raise invalid(
                f"{at}.tool_use_id: no tool_use before it has this id.", param=f"{at}.tool_use_id"
            )
        return ChatMessage("tool", whole(_result(block.content, at), at), call_id=of)


def _needed(value: str | None, param: str) -> str:
    if value is None:
        raise invalid(f"'{param}' is required and was not given.", param=param)
    return value


def _result(content: object, at: str) -> str:
    """Text, or blocks of it."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else [None]:
        if not (isinstance(block, dict) and block.get("type") == "text"):
            raise unsupported(
                f"{at}.content: only text is read here. Send a string, or blocks of type text.",
                param=f"{at}.content",
            )
        text = block.get("text")
        if not isinstance(text, str):
            raise invalid(f"{at}.content: a text is missing.", param=f"{at}.content")
        texts.append(text)
    return "\n".join(texts)


def _document(block: Block, at: str) -> str:
    source = block.source
    if source is None or source.type != "file" or source.file_id is None:
        raise unsupported(
            f"{at}.source: expected type file with the file_id of a registered document (POST /v1/documents): "
            "no other files are read from a request, and nothing is ever fetched for one.",
            param=f"{at}.source",
        )
    if block.citations is not None and block.citations.enabled:
        raise unsupported(f"{at}.citations: not supported here.", param=f"{at}.citations")
    return whole(source.file_id, f"{at}.source.file_id")


def _call(block: Block, at: str) -> ToolCall:
    try:
        given = msgspec.json.encode(block.input or {}).decode()
    except UnicodeEncodeError:
        raise invalid(f"{at}.input: contains half of a surrogate pair.", param=at) from None
    name = _needed(block.name, f"{at}.name")
    return ToolCall(whole(_needed(block.id, f"{at}.id"), at), name, given)


def _no_block(kind: str, role: str, at: str) -> ApiError:
    allowed = {
        "user": "text, document (of a registered file) and tool_result",
        "assistant": "text and tool_use",
        "system": "text",
    }
    return unsupported(
        f"{at}: '{kind}' is not supported here in a message of role {role}. Send blocks of type {allowed[role]}.",
        param=at,
    )
