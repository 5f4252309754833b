"""POST /v1/chat/completions: how messages become a prompt, and in which words it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from gateway.api.answers import chat_answer
from gateway.api.chunks import Chunks
from gateway.api.generate import Asked, Family, Resolve
from gateway.api.refused import unsupported
from gateway.api.schema_chat import ChatJob, parse_chat
from gateway.api.sse import ChatStream, fault
from gateway.api.structure import calling
from gateway.house import Reading
from gateway.provenance import GAP, Part, PartKind
from gateway.text.prompts import chat_prompt_async
from gateway.text.templates import ChatMessage, Piece
from gateway.tools.taught import taught


async def ask(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
    """Raises ApiError 400, and what `resolve` raises."""
    return await templated(
        parse_chat(body, vocab_size=reading.card.vocab_size), reading, wall_ms, resolve
    )


async def templated(job: ChatJob, reading: Reading, wall_ms: int, resolve: Resolve) -> Asked:
    """A conversation, in whichever API it came, as the tokens of a prompt.  Raises as `ask`."""
    resolved = await resolve(job.references)
    messages = job.messages if resolved is None else led_by(resolved.parts, job.messages)
    tools = () if job.tools is None else job.tools.listed
    style = reading.style
    if tools and style is None and reading.template is not None:
        raise unsupported(
            "tools: this model writes calls of tools in a form that is not known here. Leave them out, "
            "or ask another model.",
            param="tools",
            code="tools_unsupported",
        )
    controls = job.controls
    if job.tools is not None and style is not None:
        controls = replace(controls, structure=calling(controls.structure, job.tools, style))
    if style is not None and not style.shows:
        messages, tools = taught(messages, tools, style.format), ()
    prompt = await chat_prompt_async(
        reading.vocabulary,
        reading.template,
        messages,
        now=datetime.fromtimestamp(wall_ms / 1000, UTC),
        extras=job.template_extras,
        tools=tools,
    )
    return Asked(
        controls,
        (prompt,),
        templated=True,
        resolved=resolved,
        tools=job.tools,
        repeated=job.repeated,
    )


def led_by(parts: Iterable[Part], messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Registered text before everything of the client's, in the one place that a system message has."""
    pieces = [
        Piece(part.text, None if part.kind is PartKind.VARIABLE else part.label) for part in parts
    ]
    first, *others = messages
    if first.role not in {"system", "developer"}:
        return (ChatMessage.of("system", pieces), *messages)
    if first.content:
        pieces.append(Piece(GAP + first.content))
    return (replace(ChatMessage.of(first.role, pieces), name=first.name), *others)


CHAT = Family(
    route="/v1/chat/completions",
    id_prefix="chatcmpl-",
    prompt_param="messages",
    ask=ask,
    shape=partial(Chunks, ChatStream),
    write=lambda _, answered: chat_answer(answered),
    fault=fault,
)
